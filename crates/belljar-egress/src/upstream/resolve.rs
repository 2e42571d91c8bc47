//! Resolves names with the host's name servers, and checks every address.
//!
//! The executable is static, so the system's resolver library is not used, but its configuration is.

use std::fs::{self, Metadata};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};

use crate::policy::AddressScope;
use crate::upstream::address::is_allowed_address;

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// For the whole lookup; overrides the configuration.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// For one query, so that a second server is asked in time.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const CACHE_ENTRIES: u64 = 64;
const CACHE_TTL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("it leads to {0}")]
    NotAllowed(IpAddr),
    #[error("the name has no address: {0}")]
    NotFound(String),
    #[error("no name server answered in time")]
    TimedOut,
}

/// Queries the host's name servers.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    cached: Mutex<Option<CachedResolver>>,
}

#[derive(Debug)]
struct CachedResolver {
    stamp: FileStamp,
    resolver: TokioResolver,
}

/// Identifies the version of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl From<Metadata> for FileStamp {
    fn from(metadata: Metadata) -> Self {
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Self { device: metadata.dev(), inode: metadata.ino(), size: metadata.size(), changed }
    }
}

impl Resolver {
    /// All addresses of a name. One forbidden address makes the whole name denied, since which one is dialled is up
    /// to chance.
    pub(crate) async fn addresses(
        &self,
        name: &str,
        allowed: AddressScope,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        let from_hosts_file = match allowed {
            AddressScope::Private => hosts_file_addresses(name),
            AddressScope::Public | AddressScope::Literal => Vec::new(),
        };
        let found =
            if from_hosts_file.is_empty() { self.query(name).await? } else { from_hosts_file };
        checked(found, allowed)
    }

    /// Valid while the host's configuration file stays the same.
    #[cfg(test)]
    pub(crate) fn use_only_server(&self, port: u16) {
        let stamp = fs::metadata(RESOLV_CONF).map(FileStamp::from).unwrap();
        let mut connection = hickory_resolver::config::ConnectionConfig::udp();
        connection.port = port;
        let server = NameServerConfig::new(Ipv4Addr::LOCALHOST.into(), true, vec![connection]);
        let resolver = resolver(vec![server], ResolverOpts::default()).unwrap();
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Some(CachedResolver { stamp, resolver });
    }

    async fn query(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if is_local(name) {
            return Err(ResolveError::NotFound("it is a name of the host itself".to_owned()));
        }
        let resolver = self.current().map_err(|error| ResolveError::NotFound(error.to_string()))?;
        lookup(&resolver, name).await
    }

    /// The resolver for the current configuration: a machine can change its network during a run.
    fn current(&self) -> Result<TokioResolver, NetError> {
        let now = fs::metadata(RESOLV_CONF).map(FileStamp::from)?;
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some(cached) if cached.stamp == now => Ok(cached.resolver.clone()),
            _ => {
                let resolver = read_system_config()?;
                *cached = Some(CachedResolver { stamp: now, resolver: resolver.clone() });
                Ok(resolver)
            }
        }
    }
}

async fn lookup(resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
    let not_found = |error: &dyn std::fmt::Display| ResolveError::NotFound(error.to_string());
    // The final dot makes the name absolute: no search domain is appended.
    let full = Name::from_ascii(format!("{name}.")).map_err(|error| not_found(&error))?;
    match tokio::time::timeout(LOOKUP_TIMEOUT, resolver.lookup_ip(full)).await {
        Ok(Ok(found)) => Ok(found.iter().collect()),
        Ok(Err(error)) if error.is_no_records_found() => {
            Err(ResolveError::NotFound("the name servers know no address of it".to_owned()))
        }
        Ok(Err(error)) => Err(not_found(&error)),
        Err(_) => Err(ResolveError::TimedOut),
    }
}

/// All addresses, or an error.
fn checked(found: Vec<IpAddr>, allowed: AddressScope) -> Result<Vec<IpAddr>, ResolveError> {
    if let Some(bad) = found.iter().find(|address| !is_allowed_address(**address, allowed)) {
        return Err(ResolveError::NotAllowed(*bad));
    }
    if found.is_empty() {
        return Err(ResolveError::NotFound("the answer is empty".to_owned()));
    }
    Ok(found)
}

fn read_system_config() -> Result<TokioResolver, NetError> {
    let (config, options) = hickory_resolver::system_conf::read_system_conf()?;
    let (_, _, servers) = config.into_parts();
    resolver(servers, options)
}

fn resolver(
    servers: Vec<NameServerConfig>,
    mut options: ResolverOpts,
) -> Result<TokioResolver, NetError> {
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = options.timeout.min(QUERY_TIMEOUT);
    options.cache_size = CACHE_ENTRIES;
    options.positive_max_ttl = Some(CACHE_TTL);
    options.negative_max_ttl = Some(QUERY_TIMEOUT);
    options.try_tcp_on_error = true;
    let config = ResolverConfig::from_name_servers(servers);
    let provider = TokioRuntimeProvider::default();
    TokioResolver::builder_with_config(config, provider).with_options(options).build()
}

fn is_local(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// From /etc/hosts, which may name the operator's private services; a name that is found there is not queried.
fn hosts_file_addresses(name: &str) -> Vec<IpAddr> {
    let listed = fs::File::open(Path::new("/etc/hosts"))
        .and_then(|file| {
            let mut hosts = Hosts::default();
            hosts.read_hosts_conf(file).map(|()| listed(&hosts, name))
        })
        .unwrap_or_default();
    if listed.is_empty() && is_local(name) {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    listed
}

fn listed(hosts: &Hosts, name: &str) -> Vec<IpAddr> {
    let Ok(name) = Name::from_ascii(format!("{name}.")) else { return Vec::new() };
    [RecordType::A, RecordType::AAAA]
        .into_iter()
        .filter_map(|kind| hosts.lookup_static_host(&Query::query(name.clone(), kind)))
        .flat_map(|found| {
            let addresses = found.answers().iter().filter_map(|record| record.data.ip_addr());
            addresses.collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests;
