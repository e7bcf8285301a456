//! Names to addresses, without the C library: a child forked while `getaddrinfo` runs in another thread would inherit
//! its locks locked.

use std::net::{IpAddr, SocketAddr};

use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::name_server::TokioConnectionProvider;
use hickory_resolver::TokioResolver;
use socket2::{Domain, Socket, Type};

/// All addresses of a name, by the hosts file and DNS, in the order in which they are to be tried.
///
/// # Errors
/// Says in words why there is none.
pub(super) async fn addresses(name: &str) -> Result<Vec<IpAddr>, String> {
    // Without a resolv.conf there is still the hosts file.
    let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|_| {
        TokioResolver::builder_with_config(ResolverConfig::new(), TokioConnectionProvider::default())
    });
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    let found = builder.build().lookup_ip(name).await.map_err(|error| error.to_string())?;
    let mut addresses: Vec<_> = found.iter().collect();
    addresses.sort_by_key(|address| (!is_reachable(*address), std::cmp::Reverse(precedence(*address))));
    addresses.dedup();
    Ok(addresses)
}

/// Whether the system has a route; sends nothing.
fn is_reachable(address: IpAddr) -> bool {
    let address = SocketAddr::new(address, 9);
    Socket::new(Domain::for_address(address), Type::DGRAM, None).is_ok_and(|s| s.connect(&address.into()).is_ok())
}

/// The default policy table of RFC 6724, section 2.1, which `getaddrinfo` sorts by.
fn precedence(address: IpAddr) -> u8 {
    match address {
        IpAddr::V6(v6) if v6.is_loopback() => 50,
        IpAddr::V6(v6) if v6.segments()[0] & 0xfe00 == 0xfc00 => 3,
        IpAddr::V6(_) => 40,
        IpAddr::V4(_) => 35,
    }
}
