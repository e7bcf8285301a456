//! From a queue's name to the channel that PGMQ's trigger notifies.

use std::sync::Arc;

/// PostgreSQL's NAMEDATALEN less the end mark: it cuts longer identifiers, LISTEN's and NOTIFY's alike, and counts bytes
/// in the database's encoding.
const LONGEST: usize = 63;

/// How many bytes a database makes of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    /// One, as in LATIN1.
    SingleByte,
    /// As in UTF-8, but the cut may go through a character (SQL_ASCII).
    Bytes,
    /// One for ASCII, two to four for others, as in EUC_JP.
    MultiByte,
}

impl Encoding {
    /// By PostgreSQL's name of it, `server_encoding`.
    pub fn named(name: Option<&str>) -> Self {
        match name {
            None | Some("UTF8") => Self::Utf8,
            Some("SQL_ASCII") => Self::Bytes,
            Some(name) if name.starts_with("EUC_") || name == "MULE_INTERNAL" => Self::MultiByte,
            Some(_) => Self::SingleByte,
        }
    }
}

/// The channel of a queue, cut as PostgreSQL cuts it. Two long names may share a channel.
///
/// # Errors
/// Says why no PostgreSQL takes the name, or that we can't tell where this one cuts it.
pub(super) fn of(queue: &str, encoding: Encoding) -> Result<Arc<str>, &'static str> {
    if queue.contains('\0') {
        return Err("a channel's name can't contain a NUL character");
    }
    let mut name = format!("pgmq.q_{queue}.INSERT");
    match encoding {
        Encoding::Utf8 if name.len() > LONGEST => {
            let end = (0..=LONGEST).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
            name.truncate(end);
        }
        Encoding::Bytes if name.len() > LONGEST => {
            name = String::from_utf8_lossy(&name.as_bytes()[..LONGEST]).into_owned();
        }
        Encoding::SingleByte => {
            if let Some((end, _)) = name.char_indices().nth(LONGEST) {
                name.truncate(end);
            }
        }
        Encoding::MultiByte => {
            let most: usize = name.chars().map(|character| if character.is_ascii() { 1 } else { 4 }).sum();
            if most > LONGEST && name.is_ascii() {
                name.truncate(LONGEST);
            } else if most > LONGEST {
                return Err("where this database's encoding cuts so long a name is not known");
            }
        }
        Encoding::Utf8 | Encoding::Bytes => {}
    }
    Ok(name.into())
}

/// The name as an SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_what_pgmq_notifies() {
        assert_eq!(&*of("chat", Encoding::Utf8).unwrap(), "pgmq.q_chat.INSERT");
        assert_eq!(quoted(&of("a\"b c", Encoding::Utf8).unwrap()), "\"pgmq.q_a\"\"b c.INSERT\"");
    }

    #[test]
    fn long_names_are_cut_as_the_database_cuts_them() {
        let cut = |queue: &str, encoding| of(queue, encoding).unwrap().to_string();
        let accents = format!("x{}", "é".repeat(60));
        for encoding in [Encoding::Utf8, Encoding::SingleByte, Encoding::Bytes, Encoding::MultiByte] {
            assert_eq!(cut(&"x".repeat(49), encoding).len(), 63);
            assert_eq!(cut(&"x".repeat(60), encoding), format!("pgmq.q_{}", "x".repeat(56)));
        }
        assert_eq!(cut(&accents, Encoding::Utf8), format!("pgmq.q_x{}", "é".repeat(27)));
        assert_eq!(cut(&accents, Encoding::SingleByte), format!("pgmq.q_x{}", "é".repeat(55)));
        assert_eq!(cut(&accents, Encoding::Bytes), format!("pgmq.q_x{}\u{FFFD}", "é".repeat(27)));
        assert!(of(&accents, Encoding::MultiByte).is_err());
    }

    #[test]
    fn nul_is_refused() {
        assert!(of("a\0b", Encoding::Utf8).is_err());
    }
}
