//! Recipes as Ruby makes them.

use std::collections::HashMap;

use magnus::{Error, RArray, RHash, RString};
use pgbus_native_engine::listen::{self, Host, OptionsError, Place};
use pgbus_native_engine::session::recipe::Recipe;

/// Name, folder of a Unix socket, addresses, why there are none, port, and password.
type HostFields = (Option<String>, Option<String>, Vec<String>, Option<String>, String, RString);

/// From hosts, keywords and variables, as `ConnectionOptions` resolves them. Options that the native session can't honour
/// make a Ruby session.
pub fn recipe(hosts: RArray, keywords: RHash, variables: RArray) -> Result<Result<Recipe, String>, Error> {
    Ok(match options(hosts, keywords, variables)? {
        Ok(options) => Ok(Recipe::Native(Box::new(options))),
        Err(unsupported @ OptionsError::Unsupported { .. }) => Ok(Recipe::Ruby { because: unsupported.to_string() }),
        Err(invalid @ OptionsError::Invalid { .. }) => Err(invalid.to_string()),
    })
}

pub fn options(
    hosts: RArray,
    keywords: RHash,
    variables: RArray,
) -> Result<Result<listen::Options, OptionsError>, Error> {
    let hosts = (0..hosts.len()).map(|at| hosts.entry::<HostFields>(at as isize)).collect::<Result<Vec<_>, _>>()?;
    let keywords: HashMap<String, String> = keywords.to_hash_map()?;
    let variables = variables.to_vec::<(String, String)>()?;
    let hosts = hosts.into_iter().map(host).collect::<Result<_, _>>();
    Ok(hosts.and_then(|hosts| listen::Options::parse(hosts, keywords, variables)))
}

fn host((name, folder, addresses, unknown, port, password): HostFields) -> Result<Host, OptionsError> {
    let place = match (folder, unknown) {
        (Some(folder), _) => Place::Folder(folder),
        (None, Some(why)) => Place::Unknown { why },
        (None, None) => Place::addresses(addresses.iter().map(String::as_str))?,
    };
    // SAFETY: the bytes are copied before Ruby runs again.
    let password = unsafe { password.as_slice() }.to_vec();
    Host::new(name, place, &port, password)
}
