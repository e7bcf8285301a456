//! One event on its way to browsers: its bytes, made once, however many connections they go to.

/// The event name of a frame whose message names none.
pub const DEFAULT_EVENT: &str = "turbo-stream";

/// Bytes that reach a socket whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The durable position that a browser has reached with this frame; its `id` line is in the bytes. None for
    /// everything that a browser cannot come back to: ephemeral messages, comments, the farewell.
    pub msg_id: Option<i64>,
    /// What the socket gets.
    pub bytes: Box<[u8]>,
}

impl Frame {
    /// The frame of a row, with an `id` line. Its bytes are those of `Pgbus::Streams::Envelope.message`.
    pub fn durable(msg_id: i64, event: &str, data: &str) -> Self {
        Self { msg_id: Some(msg_id), bytes: encode(format!("id: {msg_id}\n"), event, data) }
    }

    /// The frame of a message that is in no table. It has no `id` line, so the browser's own position stays.
    pub fn ephemeral(event: &str, data: &str) -> Self {
        Self { msg_id: None, bytes: encode(String::new(), event, data) }
    }
}

/// An event is a single field line, so line breaks inside it are left out: they would let a message forge other
/// fields. The data become one `data` line for each of their own lines, which the browser joins again.
fn encode(id_line: String, event: &str, data: &str) -> Box<[u8]> {
    let mut frame = id_line;
    frame.reserve(event.len() + data.len() + 32);
    frame.push_str("event: ");
    frame.extend(event.chars().filter(|char| !matches!(char, '\r' | '\n')));
    let mut rest = Some(data);
    while let Some(text) = rest {
        let (line, after) = split_line(text);
        frame.push_str("\ndata: ");
        frame.push_str(line);
        rest = after;
    }
    frame.push_str("\n\n");
    frame.into_bytes().into_boxed_slice()
}

/// The first line of a text, and what follows its line break: `\r\n`, `\r` or `\n`.
fn split_line(text: &str) -> (&str, Option<&str>) {
    match text.find(['\r', '\n']) {
        None => (text, None),
        Some(at) => {
            let length = if text[at..].starts_with("\r\n") { 2 } else { 1 };
            (&text[..at], Some(&text[at + length..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(frame: &Frame) -> &str {
        std::str::from_utf8(&frame.bytes).unwrap()
    }

    #[test]
    fn a_row_has_an_id_and_an_ephemeral_message_has_none() {
        let durable = Frame::durable(7, DEFAULT_EVENT, "<p>hi</p>");
        assert_eq!((durable.msg_id, text(&durable)), (Some(7), "id: 7\nevent: turbo-stream\ndata: <p>hi</p>\n\n"));
        let ephemeral = Frame::ephemeral("presence", "<p>hi</p>");
        assert_eq!((ephemeral.msg_id, text(&ephemeral)), (None, "event: presence\ndata: <p>hi</p>\n\n"));
    }

    #[test]
    fn every_line_of_the_data_is_a_data_line_also_an_empty_one() {
        let data =
            |data: &str| text(&Frame::durable(1, "e", data)).strip_prefix("id: 1\nevent: e\n").unwrap().to_owned();
        assert_eq!(data(""), "data: \n\n");
        assert_eq!(data("a\nb\rc\r\nd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
        assert_eq!(data("a\n"), "data: a\ndata: \n\n");
        assert_eq!(data("\n\r\n\r"), "data: \ndata: \ndata: \ndata: \n\n");
        assert_eq!(data("\nid: 9"), "data: \ndata: id: 9\n\n");
    }

    #[test]
    fn an_event_cannot_begin_another_field() {
        assert_eq!(text(&Frame::ephemeral("a\r\nid: 9\n", "x")), "event: aid: 9\ndata: x\n\n");
    }

    /// What a browser makes of a stream, by the rules of the HTML standard: (last event id, event, data).
    fn parse(stream: &str) -> Vec<(String, String, String)> {
        let (mut id, mut event, mut data, mut events) = (String::new(), String::new(), String::new(), Vec::new());
        let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
        for line in stream.split_terminator('\n') {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() => {
                    data.pop();
                    events.push((id.clone(), std::mem::take(&mut event), std::mem::take(&mut data)));
                }
                "id" => value.clone_into(&mut id),
                "event" => value.clone_into(&mut event),
                "data" => data.extend([value, "\n"]),
                other => panic!("no field of ours: {other:?}"),
            }
        }
        events
    }

    fn tricky() -> impl Strategy<Value = String> {
        prop::collection::vec(
            prop::sample::select(vec!["\r", "\n", "\r\n", "id: 5", "data:", ":", " ", "", "ä", "\u{2028}", "\0", "x"]),
            0..12,
        )
        .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn a_browser_reads_what_was_sent_whatever_is_in_it(
            messages in prop::collection::vec((prop::option::of(any::<i64>()), tricky(), tricky()), 1..5),
        ) {
            let (mut stream, mut expected, mut last_id) = (String::new(), Vec::new(), String::new());
            for (msg_id, event, data) in &messages {
                let frame = match msg_id {
                    Some(msg_id) => Frame::durable(*msg_id, event, data),
                    None => Frame::ephemeral(event, data),
                };
                if let Some(msg_id) = msg_id { last_id = msg_id.to_string() }
                let event = event.replace(['\r', '\n'], "");
                expected.push((last_id.clone(), event, data.replace("\r\n", "\n").replace('\r', "\n")));
                stream += text(&frame);
            }
            prop_assert_eq!(parse(&stream), expected);
        }
    }
}
