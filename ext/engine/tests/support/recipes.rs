//! Recipes of native sessions on a test's own server.
#![allow(dead_code)] // Each test file uses its part.

use pgbus_native_engine::listen::{Host, Options, Place};
use pgbus_native_engine::session::recipe::{Answer, Recipe, Recipes};
use tokio::sync::mpsc::unbounded_channel;

use super::support::{pairs, Postgres, USER};

/// The database of `postgres` over TCP, directly or at the port of something in front of it.
pub fn options_at(port: u16, postgres: &Postgres) -> Options {
    let place = Place::Addresses(vec!["127.0.0.1".parse().unwrap()]);
    let host = Host::new(None, place, &port.to_string(), Vec::new()).unwrap();
    let keywords = pairs(&[
        ("user", USER),
        ("dbname", &postgres.database),
        ("application_name", "pgbus-feed"),
        ("sslmode", "disable"),
    ]);
    Options::parse(vec![host], keywords, Vec::new()).unwrap()
}

/// The answer to whoever needs a recipe.
pub fn recipe(options: &Options) -> Result<Recipe, String> {
    Ok(Recipe::Native(Box::new(options.clone())))
}

/// Recipes that are always the same.
pub fn recipes(options: Options) -> Recipes {
    let (send, answers) = unbounded_channel();
    Recipes::new(move |number| send.send(Answer { number, recipe: recipe(&options) }).unwrap(), answers)
}
