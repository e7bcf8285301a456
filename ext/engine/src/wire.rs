//! Frames on the Unix socket between hub and workers: a 4-byte big-endian length, then that many bytes of UTF-8 JSON.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::{self, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// The longest JSON text of a frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;

const HEADER_BYTES: usize = 4;

/// What a worker said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// `{"t":"sub","q":Q}`: answered by an ack.
    Sub(String),
    /// `{"t":"unsub","q":Q}`: no answer.
    Unsub(String),
    /// An object that means nothing to the hub; the text says why.
    Unknown(String),
}

/// What the hub said.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
pub enum Reply {
    /// LISTEN is active for this queue.
    Ack {
        /// The queue.
        q: String,
    },
    /// The readers of a queue are to look.
    Wake {
        /// The queue.
        q: String,
        /// None for a durable wake, the text of an ephemeral one.
        p: Option<String>,
    },
    /// Whether the LISTEN session is up.
    Status {
        /// True: it is.
        healthy: bool,
    },
    /// Something that a later hub may say.
    #[serde(other)]
    Unknown,
}

/// Why bytes are no frame. There is no way back into step after one: the connection is severed.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The announced length.
    #[error("frame too large: {0} bytes (at most {MAX_FRAME_BYTES})")]
    TooLarge(usize),
    /// Not UTF-8, not JSON, or not an object.
    #[error("malformed frame: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Turns bytes, in pieces of any size, into frames. Its memory follows what arrived, never what was announced.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, as the hub understands it; None until more bytes arrive.
    ///
    /// # Errors
    /// [`ProtocolError`], after which the decoder is of no use.
    pub fn next_request(&mut self) -> Result<Option<Request>, ProtocolError> {
        Ok(self.next_frame::<Object>()?.map(Request::from))
    }

    /// The next whole frame, as a worker understands it; None until more bytes arrive.
    ///
    /// # Errors
    /// [`ProtocolError`], after which the decoder is of no use.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ProtocolError> {
        self.next_frame()
    }

    fn next_frame<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ProtocolError> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(ProtocolError::TooLarge(length));
        }
        let end = HEADER_BYTES + length;
        if self.buffer.len() < end {
            return Ok(None);
        }
        let frame = self.buffer.split_to(end);
        if self.buffer.is_empty() {
            // One large frame must not keep its room for good.
            self.buffer = BytesMut::new();
        }
        Ok(Some(serde_json::from_slice(&frame[HEADER_BYTES..])?))
    }
}

/// A frame that says LISTEN is active for `queue`.
///
/// # Errors
/// [`ProtocolError::TooLarge`].
pub fn ack(queue: &str) -> Result<Bytes, ProtocolError> {
    encode(&Message::Ack { q: queue })
}

/// A frame that wakes the readers of `queue`: durable without, ephemeral with a payload.
///
/// # Errors
/// [`ProtocolError::TooLarge`].
pub fn wake(queue: &str, payload: Option<&str>) -> Result<Bytes, ProtocolError> {
    encode(&Message::Wake { q: queue, p: payload })
}

/// A frame that says whether the LISTEN session is up.
///
/// # Errors
/// [`ProtocolError::TooLarge`] in theory.
pub fn status(healthy: bool) -> Result<Bytes, ProtocolError> {
    encode(&Message::Status { healthy })
}

/// A frame by which a worker subscribes to `queue`.
///
/// # Errors
/// [`ProtocolError::TooLarge`].
pub fn sub(queue: &str) -> Result<Bytes, ProtocolError> {
    encode(&Message::Sub { q: queue })
}

/// A frame by which a worker ends its subscription to `queue`.
///
/// # Errors
/// [`ProtocolError::TooLarge`].
pub fn unsub(queue: &str) -> Result<Bytes, ProtocolError> {
    encode(&Message::Unsub { q: queue })
}

#[derive(Serialize)]
#[serde(tag = "t", rename_all = "lowercase")]
enum Message<'a> {
    Ack { q: &'a str },
    Wake { q: &'a str, p: Option<&'a str> },
    Status { healthy: bool },
    Sub { q: &'a str },
    Unsub { q: &'a str },
}

fn encode(message: &Message<'_>) -> Result<Bytes, ProtocolError> {
    let mut frame = BytesMut::with_capacity(128);
    frame.put_u32(0);
    let mut writer = frame.writer();
    serde_json::to_writer(&mut writer, message)?;
    let mut frame = writer.into_inner();
    let length = frame.len() - HEADER_BYTES;
    if length > MAX_FRAME_BYTES {
        return Err(ProtocolError::TooLarge(length));
    }
    frame[..HEADER_BYTES].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(frame.freeze())
}

/// The two fields that count, whatever else an object holds; nothing of the rest is kept in memory.
struct Object {
    t: Field,
    q: Field,
}

enum Field {
    Text(String),
    Other,
}

impl From<Object> for Request {
    fn from(Object { t, q }: Object) -> Self {
        match (t, q) {
            (Field::Text(t), Field::Text(q)) if t == "sub" => Request::Sub(q),
            (Field::Text(t), Field::Text(q)) if t == "unsub" => Request::Unsub(q),
            (Field::Text(t), Field::Other) if t == "sub" || t == "unsub" => {
                Request::Unknown(format!("{t} whose \"q\" is not a string"))
            }
            (Field::Text(t), _) => Request::Unknown(format!("unknown \"t\": {:?}", head(&t))),
            (Field::Other, _) => Request::Unknown("\"t\" is not a string".to_owned()),
        }
    }
}

/// The beginning of a text of any length, for a log line.
fn head(text: &str) -> String {
    text.chars().take(64).collect()
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = Object { t: Field::Other, q: Field::Other };
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "t" => object.t = map.next_value()?,
                        "q" => object.q = map.next_value()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrOther;
        impl<'de> Visitor<'de> for TextOrOther {
            type Value = Field;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("any value")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Field, E> {
                Ok(Field::Text(text.to_owned()))
            }

            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_unit<E: de::Error>(self) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Field::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Field::Other)
            }
        }
        deserializer.deserialize_any(TextOrOther)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(json: &[u8]) -> Vec<u8> {
        [&(json.len() as u32).to_be_bytes()[..], json].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Request>, ProtocolError> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let mut requests = Vec::new();
        while let Some(request) = decoder.next_request()? {
            requests.push(request);
        }
        Ok(requests)
    }

    fn one(json: &str) -> Request {
        decode(&frame(json.as_bytes())).unwrap().remove(0)
    }

    fn error(json: &[u8]) -> String {
        decode(&frame(json)).unwrap_err().to_string()
    }

    #[test]
    fn subscribes_and_unsubscribes_whatever_else_is_said() {
        assert_eq!(one(r#"{"t":"sub","q":"chat"}"#), Request::Sub("chat".into()));
        assert_eq!(one(r#" {"q":"a\"b \u00e4", "x":[1,{"t":2}], "t":"unsub"} "#), Request::Unsub("a\"b ä".into()));
    }

    #[test]
    fn fields_of_the_wrong_type_and_unknown_kinds_mean_nothing() {
        for q in ["5", "null", "true", "-1.5", "[\"chat\"]", "{\"q\":\"chat\"}", "1e3"] {
            assert!(matches!(one(&format!(r#"{{"t":"sub","q":{q}}}"#)), Request::Unknown(_)), "{q}");
            assert!(matches!(one(&format!(r#"{{"t":{q},"q":"chat"}}"#)), Request::Unknown(_)), "{q}");
        }
        assert!(matches!(one(r#"{"t":"sub"}"#), Request::Unknown(_)));
        assert!(matches!(one(r#"{"t":"ping"}"#), Request::Unknown(text) if text.contains("ping")));
        assert!(matches!(one("{}"), Request::Unknown(_)));
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        for json in ["[]", "5", "null", "\"sub\"", "", "{", "{\"t\":\"sub\"}}", "{\"t\" \"sub\"}"] {
            assert!(error(json.as_bytes()).starts_with("malformed frame: "), "{json}");
        }
        assert!(error(b"{\"t\":\"sub\",\"q\":\"\xff\xfe\"}").starts_with("malformed frame: "));
        assert!(error("[".repeat(100_000).as_bytes()).starts_with("malformed frame: "));
        assert!(error(format!("{{\"t\":{}", "[".repeat(100_000)).as_bytes()).starts_with("malformed frame: "));
    }

    #[test]
    fn an_oversized_announcement_is_refused_before_its_bytes_arrive() {
        assert!(matches!(decode(&u32::MAX.to_be_bytes()), Err(ProtocolError::TooLarge(4_294_967_295))));
        assert!(matches!(decode(&(4 * 1024 * 1024 + 1u32).to_be_bytes()), Err(ProtocolError::TooLarge(_))));
        assert_eq!(decode(&(4 * 1024 * 1024u32).to_be_bytes()).unwrap(), []);
    }

    #[test]
    fn a_frame_of_the_greatest_size_is_taken() {
        let json = format!(r#"{{"t":"sub","q":"{}"}}"#, "x".repeat(MAX_FRAME_BYTES - 18));
        assert_eq!(json.len(), MAX_FRAME_BYTES);
        assert!(matches!(one(&json), Request::Sub(q) if q.len() == MAX_FRAME_BYTES - 18));
    }

    #[test]
    fn says_what_workers_expect() {
        let text = |bytes: Bytes| String::from_utf8(bytes[4..].to_vec()).unwrap();
        assert_eq!(text(ack("a\"b").unwrap()), r#"{"t":"ack","q":"a\"b"}"#);
        assert_eq!(text(wake("chat", None).unwrap()), r#"{"t":"wake","q":"chat","p":null}"#);
        assert_eq!(text(wake("chat", Some("<b>\n")).unwrap()), r#"{"t":"wake","q":"chat","p":"<b>\n"}"#);
        assert_eq!(text(status(true).unwrap()), r#"{"t":"status","healthy":true}"#);
        let bytes = status(false).unwrap();
        assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
    }

    #[test]
    fn a_worker_understands_what_the_hub_says_and_the_hub_what_a_worker_says() {
        let mut decoder = Decoder::default();
        for frame in [ack("a\"b"), wake("chat", None), wake("chat", Some("<b>\n")), status(false)] {
            decoder.push(&frame.unwrap());
        }
        decoder.push(&frame(br#"{"t":"news","q":7}"#));
        let replies: Vec<Reply> = std::iter::from_fn(|| decoder.next_reply().unwrap()).collect();
        let wake = |p: Option<&str>| Reply::Wake { q: "chat".into(), p: p.map(Into::into) };
        let ack = Reply::Ack { q: "a\"b".into() };
        assert_eq!(replies, [ack, wake(None), wake(Some("<b>\n")), Reply::Status { healthy: false }, Reply::Unknown]);
        assert_eq!(decode(&sub("a\"b").unwrap()).unwrap(), [Request::Sub("a\"b".into())]);
        assert_eq!(decode(&unsub("chat").unwrap()).unwrap(), [Request::Unsub("chat".into())]);
    }

    #[test]
    fn does_not_send_what_a_worker_would_refuse() {
        let most = MAX_FRAME_BYTES - r#"{"t":"wake","q":"q","p":""}"#.len();
        assert_eq!(wake("q", Some(&"x".repeat(most))).unwrap().len(), MAX_FRAME_BYTES + 4);
        assert!(matches!(wake("q", Some(&"x".repeat(most + 1))), Err(ProtocolError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn frames_come_out_the_same_however_they_are_cut(
            queues in prop::collection::vec(".*", 0..8),
            cuts in prop::collection::vec(1usize..40, 1..64),
        ) {
            let bytes: Vec<u8> = queues
                .iter()
                .flat_map(|q| frame(serde_json::json!({ "t": "sub", "q": q }).to_string().as_bytes()))
                .collect();
            let mut decoder = Decoder::default();
            let (mut rest, mut seen) = (&bytes[..], Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (piece, left) = rest.split_at((*cut).min(rest.len()));
                rest = left;
                decoder.push(piece);
                while let Some(request) = decoder.next_request().unwrap() { seen.push(request) }
            }
            prop_assert_eq!(seen, queues.into_iter().map(Request::Sub).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode(&bytes);
            let _ = decode(&frame(&bytes));
        }
    }
}
