//! Queues as PGMQ lays them out.
#![allow(dead_code)] // Each test file uses its part.

use super::support::Postgres;

/// A live and an archive table for each of these queues.
pub fn create(postgres: &Postgres, queues: &[&str]) {
    let tables = queues.iter().flat_map(|queue| [format!("q_{queue}"), format!("a_{queue}")]);
    let tables = tables.map(|table| {
        format!(
            "CREATE TABLE pgmq.\"{table}\" (msg_id bigint PRIMARY KEY, enqueued_at timestamptz NOT NULL DEFAULT now(), \
             message jsonb);"
        )
    });
    postgres.sql(&format!("CREATE SCHEMA IF NOT EXISTS pgmq; {}", tables.collect::<String>()));
}

/// Adds rows with these msg_ids, whose message says which they are.
pub fn insert(postgres: &Postgres, table: &str, msg_ids: std::ops::RangeInclusive<i64>) {
    postgres.sql(&format!(
        "INSERT INTO pgmq.\"{table}\" SELECT i, now(), jsonb_build_object('html', 'row ' || i) \
         FROM generate_series({}, {}) i",
        msg_ids.start(),
        msg_ids.end()
    ));
}
