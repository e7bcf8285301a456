//! What a message says: its payload, who may see it, who must not, and what kind of event it is.
//!
//! The rules are those of pgbus's dispatcher, which parses the same text with Ruby's JSON. A row's text comes from a
//! `jsonb` column, so both parsers read it alike, but for one rule of Ruby's: what is nested deeper than 100 is no JSON.
//! An ephemeral text may come from anywhere. What JSON itself forbids and a Ruby parser of some version lets through
//! (comments, an escape like `\q`) is malformed here.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::frame::DEFAULT_EVENT;

/// How deep Ruby's `JSON.parse` follows arrays and objects.
const MAX_NESTING: usize = 100;

/// What Ruby's `String#strip` takes away at both ends.
const BLANK: [char; 7] = ['\0', '\t', '\n', '\x0b', '\x0c', '\r', ' '];

/// A message as its sender meant it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// The data of the event.
    pub payload: Cow<'a, str>,
    /// The event's name.
    pub event: Cow<'a, str>,
    /// The audience's label as JSON. Mostly a string, the name of a filter; whatever else it is, no filter has that
    /// name. None: everybody may see it.
    pub label: Option<&'a str>,
    /// The id of the one connection that does not get it.
    pub exclude: Option<Cow<'a, str>>,
}

/// An ephemeral text that is no JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A parser stopped.
    #[error("{0}")]
    Syntax(String),
    /// Deeper than Ruby follows, which is 100.
    #[error("nesting of {0} is too deep")]
    Nesting(usize),
}

impl<'a> Message<'a> {
    /// The message of a row. What is not an object with an `html` string goes to everybody as it is.
    pub fn of_row(text: &'a str) -> Self {
        Self::parse(text).ok().flatten().unwrap_or(Self {
            payload: Cow::Borrowed(text),
            event: Cow::Borrowed(DEFAULT_EVENT),
            label: None,
            exclude: None,
        })
    }

    /// The message of an ephemeral wake. None if it is not an object with an `html` string: it means nothing then.
    pub fn of_wake(text: &'a str) -> Result<Option<Self>, Malformed> {
        Self::parse(text)
    }

    fn parse(text: &'a str) -> Result<Option<Self>, Malformed> {
        let fields = Fields::read(text).map_err(|error| Malformed::Syntax(error.to_string()))?;
        match nesting(text) {
            depth if depth > MAX_NESTING => Err(Malformed::Nesting(depth)),
            _ => fields.message().map_err(|error| Malformed::Syntax(error.to_string())),
        }
    }
}

/// The fields that mean something, as JSON. Of a field that comes twice the last counts, as in Ruby.
#[derive(Default)]
struct Fields<'a> {
    html: Option<&'a RawValue>,
    visible_to: Option<&'a RawValue>,
    exclude: Option<&'a RawValue>,
    event: Option<&'a RawValue>,
}

impl<'a> Fields<'a> {
    /// Of any JSON; what is not an object has no fields.
    fn read(text: &'a str) -> serde_json::Result<Self> {
        if !text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
            return serde_json::from_str::<IgnoredAny>(text).map(|_| Self::default());
        }
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let fields = deserializer.deserialize_map(FieldsVisitor)?;
        deserializer.end()?;
        Ok(fields)
    }

    fn message(self) -> serde_json::Result<Option<Message<'a>>> {
        let Some(payload) = string(self.html)? else { return Ok(None) };
        Ok(Some(Message {
            payload,
            event: event(string(self.event)?),
            label: self.visible_to.map(RawValue::get).filter(|label| *label != "null"),
            exclude: match string(self.exclude)? {
                Some(id) => Some(id).filter(|id| !id.is_empty()),
                None => self.exclude.and_then(|value| integer(value.get())).map(Cow::Borrowed),
            },
        }))
    }
}

/// A name as it can stand in an event's line; a blank one and one with a line break is the default.
fn event(name: Option<Cow<'_, str>>) -> Cow<'_, str> {
    name.map(|name| match name.trim_matches(BLANK) {
        trimmed if trimmed.len() == name.len() => name,
        trimmed => Cow::Owned(trimmed.to_owned()),
    })
    .filter(|name| !name.is_empty() && !name.contains(['\r', '\n']))
    .unwrap_or(Cow::Borrowed(DEFAULT_EVENT))
}

/// The text of a JSON string; None for any other value.
fn string(value: Option<&RawValue>) -> serde_json::Result<Option<Cow<'_, str>>> {
    let Some(json) = value.map(RawValue::get).filter(|json| json.starts_with('"')) else { return Ok(None) };
    let inside = &json[1..json.len() - 1];
    if inside.contains('\\') {
        return serde_json::from_str(json).map(|text: String| Some(Cow::Owned(text)));
    }
    Ok(Some(Cow::Borrowed(inside)))
}

/// Ruby compares an `exclude` of any type with a connection's id as texts. The text of an integer is its digits; that
/// of another number has a point in it, and those of arrays, objects and truth values are no ids either.
fn integer(json: &str) -> Option<&str> {
    let digits = json.strip_prefix('-').unwrap_or(json);
    match digits {
        "0" => Some(digits),
        _ => Some(json).filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit())),
    }
    .filter(|_| !digits.is_empty())
}

/// How deep a text, which must be JSON, is nested.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    deepest
}

/// Takes the fields out of an object.
struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let field = match &*name {
                "html" => &mut fields.html,
                "visible_to" => &mut fields.visible_to,
                "exclude" => &mut fields.exclude,
                "event" => &mut fields.event,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = Some(map.next_value()?);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Message<'_> {
        Message::of_row(text)
    }

    fn wake(text: &str) -> Option<Message<'_>> {
        Message::of_wake(text).unwrap()
    }

    #[test]
    fn an_object_with_an_html_string_is_its_html() {
        let text = r#"{"html": "<b>\n\"ä\" \ud83d\ude00</b>"}"#;
        assert_eq!(row(text).payload, "<b>\n\"ä\" \u{1f600}</b>");
        assert_eq!(row(text), wake(text).unwrap());
        assert_eq!(row(r#"{"\u0068tml": "", "other": [1, {"html": 2}]}"#).payload, "");
    }

    #[test]
    fn anything_else_is_the_payload_of_a_row_and_means_nothing_as_a_wake() {
        let deep = format!(r#"{{"html": 5, "deep": {}1{}}}"#, "[".repeat(99), "]".repeat(99));
        for text in [
            r#"{"html": 5}"#,
            r#"{"html": null, "visible_to": "admins"}"#,
            r#"{"text": "html"}"#,
            "{}",
            "[]",
            r#"["html", {"html": "x"}]"#,
            r#""html""#,
            r#""a\nb""#,
            "5",
            "-5",
            "1.5",
            "1e5",
            "true",
            "null",
            deep.as_str(),
        ] {
            let expected = Message { payload: text.into(), event: DEFAULT_EVENT.into(), label: None, exclude: None };
            assert_eq!(row(text), expected, "{text}");
            assert_eq!(wake(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_the_payload_of_a_row_and_an_error_as_a_wake() {
        for text in [
            "",
            "  ",
            "<p>",
            "{",
            r#"{"html": "a"}}"#,
            r#"{"html": "a",}"#,
            r#"{"html": "a", "n": NaN}"#,
            "\u{feff}{}",
            r#"{"html": "\ud800"}"#,
            "{\"html\": \"a\nb\"}",
            r#"{"html": "a", "n": 01}"#,
            r#"{"html": "\u12"}"#,
        ] {
            assert_eq!(row(text).payload, text);
            assert!(matches!(Message::of_wake(text), Err(Malformed::Syntax(_))), "{text}");
        }
    }

    #[test]
    fn ruby_does_not_read_what_is_nested_deeper_than_a_hundred() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
            format!(r#"{{"html": "[[\"[[", "deep": {open}{close}, "visible_to": "admins"}}"#)
        };
        assert_eq!(row(&nested(100)).payload, "[[\"[[");
        let (too_deep, far_too_deep) = (nested(101), nested(100_000));
        assert_eq!((&*row(&too_deep).payload, row(&too_deep).label), (&*too_deep, None));
        assert_eq!(Message::of_wake(&too_deep).unwrap_err().to_string(), "nesting of 101 is too deep");
        assert_eq!(row(&far_too_deep).payload, far_too_deep);
    }

    #[test]
    fn of_a_field_that_comes_twice_the_last_counts() {
        assert_eq!(wake(r#"{"html": "a", "html": "b"}"#).unwrap().payload, "b");
        assert_eq!(wake(r#"{"html": "a", "html": 5}"#), None);
    }

    #[test]
    fn a_number_of_any_size_is_a_number() {
        assert_eq!(
            wake(r#"{"html": "a", "n": 1e999, "m": -0.0, "k": 123456789012345678901234}"#).unwrap().payload,
            "a"
        );
    }

    #[test]
    fn an_event_is_stripped_and_is_the_default_if_nothing_or_a_line_break_is_left() {
        for (event, expected) in [
            (r#""presence""#, "presence"),
            (r#"" \t\u0000presence \n\r\u000b\f\u0000 ""#, "presence"),
            (r#""a b""#, "a b"),
            (r#""\u00a0x""#, "\u{a0}x"),
            (r#""""#, DEFAULT_EVENT),
            (r#"" \n ""#, DEFAULT_EVENT),
            (r#""a\nid: 5""#, DEFAULT_EVENT),
            (r#""a\rb""#, DEFAULT_EVENT),
            ("5", DEFAULT_EVENT),
            ("null", DEFAULT_EVENT),
            (r#"["presence"]"#, DEFAULT_EVENT),
        ] {
            assert_eq!(row(&format!(r#"{{"html": "", "event": {event}}}"#)).event, expected, "{event}");
        }
    }

    #[test]
    fn a_label_is_any_json_but_null() {
        for label in [r#""admins""#, r#""a\u00e4""#, r#""""#, "5", "false", r#"["admins", 1]"#, "{}"] {
            assert_eq!(row(&format!(r#"{{"html": "", "visible_to":  {label} }}"#)).label, Some(label));
        }
        assert_eq!(row(r#"{"html": "", "visible_to": null}"#).label, None);
        assert_eq!(row(r#"{"html": ""}"#).label, None);
    }

    #[test]
    fn an_exclude_is_the_text_that_ruby_compares_with_an_id() {
        for (exclude, expected) in [
            (r#""ab12""#, Some("ab12")),
            (r#""\u0061b""#, Some("ab")),
            ("1234567890123456", Some("1234567890123456")),
            ("123456789012345678901234567890", Some("123456789012345678901234567890")),
            ("-5", Some("-5")),
            ("-0", Some("0")),
            ("0", Some("0")),
            (r#""""#, None),
            ("null", None),
            ("1.5", None),
            ("1e5", None),
            ("true", None),
            (r#"["ab12"]"#, None),
        ] {
            let text = format!(r#"{{"html": "", "exclude": {exclude}}}"#);
            assert_eq!(row(&text).exclude.as_deref(), expected, "{exclude}");
        }
    }
}
