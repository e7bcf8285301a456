//! libpq's password file.
//!
//! <https://www.postgresql.org/docs/current/libpq-pgpass.html>

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::options::Secret;

/// What a line is looked up by; `host` is "localhost" for a Unix socket in libpq's default folder.
pub(super) struct Key<'a> {
    pub host: &'a str,
    pub port: u16,
    pub dbname: &'a str,
    pub user: &'a str,
}

/// The password of the first line that fits, None without one. Like libpq's, a file that others may read does not
/// count: the error says so.
pub(super) fn lookup(file: &Path, key: &Key<'_>) -> Result<Option<Secret>, String> {
    let Ok(metadata) = file.metadata() else { return Ok(None) };
    if !metadata.is_file() {
        return Err(format!("password file \"{}\" is not a plain file", file.display()));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "password file \"{}\" has group or world access; permissions should be u=rw (0600) or less",
            file.display()
        ));
    }
    let Ok(text) = std::fs::read_to_string(file) else { return Ok(None) };
    Ok(text.lines().find_map(|line| password(line, key)))
}

fn password(line: &str, key: &Key<'_>) -> Option<Secret> {
    if line.starts_with('#') {
        return None;
    }
    let mut rest = line.strip_suffix('\r').unwrap_or(line);
    for wanted in [key.host, &key.port.to_string(), key.dbname, key.user] {
        let (field, after) = field(rest);
        if rest.split(':').next() != Some("*") && field != wanted {
            return None;
        }
        rest = after?;
    }
    let (password, _) = field(rest);
    Some(password).filter(|password| !password.is_empty()).map(Secret)
}

/// Up to the first colon without a backslash, and what comes after it. A backslash makes the next character plain.
fn field(text: &str) -> (String, Option<&str>) {
    let mut field = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            ':' => return (field, Some(&text[at + 1..])),
            '\\' => field.extend(characters.next().map(|(_, plain)| plain)),
            _ => field.push(character),
        }
    }
    (field, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key<'static> = Key { host: "db", port: 5432, dbname: "shop", user: "app" };

    fn found(line: &str) -> Option<String> {
        password(line, &KEY).map(|secret| secret.0)
    }

    #[test]
    fn each_field_must_fit_or_be_a_star() {
        assert_eq!(found("db:5432:shop:app:secret").as_deref(), Some("secret"));
        assert_eq!(found("*:*:*:*:secret").as_deref(), Some("secret"));
        assert_eq!(found("db:5433:shop:app:secret"), None);
        assert_eq!(found("db:5432:shop:app"), None);
        assert_eq!(found("# db:5432:shop:app:secret"), None);
    }

    #[test]
    fn backslashes_make_colons_and_backslashes_plain() {
        assert_eq!(found(r"db:5432:shop:app:a\:b\\c").as_deref(), Some(r"a:b\c"));
        assert_eq!(found(r"d\b:5432:shop:app:x").as_deref(), Some("x"));
        assert_eq!(found(r"\*:5432:shop:app:x"), None);
    }
}
