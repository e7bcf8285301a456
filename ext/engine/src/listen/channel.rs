//! From a queue's name to the channel that PGMQ's trigger notifies.

use std::sync::Arc;

/// PostgreSQL's NAMEDATALEN less the end mark: it cuts longer identifiers, LISTEN's and NOTIFY's alike.
const LONGEST: usize = 63;

/// The channel of a queue, cut as PostgreSQL cuts it: at 63 bytes, at the border of a character. Two long names may
/// share a channel.
///
/// # Errors
/// Says why no PostgreSQL takes the name: it has a NUL character.
pub(super) fn of(queue: &str) -> Result<Arc<str>, &'static str> {
    if queue.contains('\0') {
        return Err("a channel's name can't contain a NUL character");
    }
    let mut name = format!("pgmq.q_{queue}.INSERT");
    if name.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
        name.truncate(end);
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
        assert_eq!(&*of("chat").unwrap(), "pgmq.q_chat.INSERT");
        assert_eq!(quoted(&of("a\"b c").unwrap()), "\"pgmq.q_a\"\"b c.INSERT\"");
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(of(&"x".repeat(49)).unwrap().len(), 63);
        assert_eq!(&*of(&"x".repeat(60)).unwrap(), format!("pgmq.q_{}", "x".repeat(56)));
        assert_eq!(&*of(&format!("x{}", "é".repeat(60))).unwrap(), format!("pgmq.q_x{}", "é".repeat(27)));
    }

    #[test]
    fn nul_is_refused() {
        assert!(of("a\0b").is_err());
    }
}
