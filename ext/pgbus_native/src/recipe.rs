//! Recipes, from Ruby's words for them to the engine's.

use std::collections::HashMap;

use magnus::{Error, RArray, RHash, RString};
use pgbus_native_engine::listen::{Host, Options, OptionsError, Place};
use pgbus_native_engine::session::recipe::Recipe;

/// What `ConnectionOptions` resolved. Options that the native session can't honour make a Ruby session; the inner error
/// says which can't be options at all.
pub fn made_of(hosts: RArray, keywords: RHash, variables: RArray) -> Result<Result<Recipe, String>, Error> {
    Ok(match options(hosts, keywords, variables)? {
        Ok(options) => Ok(Recipe::Native(Box::new(options))),
        Err(unsupported @ OptionsError::Unsupported { .. }) => Ok(Recipe::Ruby { because: unsupported.to_string() }),
        Err(invalid @ OptionsError::Invalid { .. }) => Err(invalid.to_string()),
    })
}

/// Name, folder of a Unix socket, addresses, why there are none, port, and password.
type HostFields = (Option<String>, Option<String>, Vec<String>, Option<String>, String, RString);

/// Hosts, libpq's other keywords, and the variables to SET.
fn options(hosts: RArray, keywords: RHash, variables: RArray) -> Result<Result<Options, OptionsError>, Error> {
    let hosts = (0..hosts.len()).map(|at| hosts.entry::<HostFields>(at as isize)).collect::<Result<Vec<_>, _>>()?;
    let keywords: HashMap<String, String> = keywords.to_hash_map()?;
    let variables = variables.to_vec::<(String, String)>()?;
    let hosts = hosts.into_iter().map(host).collect::<Result<_, _>>();
    Ok(hosts.and_then(|hosts| Options::parse(hosts, keywords, variables)))
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
