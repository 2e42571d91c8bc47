//! Issues and caches the certificates of single hosts, on first use.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_spec::Host;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{NoServerSessionStorage, ServerConnection};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::InterceptError;
use super::authority::Authority;
use crate::upstream::roots::{ALPN_H1, ALPN_H2, provider};

/// A run that intercepts more hosts than this issues some certificates twice.
const MAX_CACHED: usize = 128;

pub(super) struct LeafCertificates {
    /// One key for all certificates: they live in the same process and end with it.
    key: KeyPair,
    signing: Arc<dyn rustls::sign::SigningKey>,
    cache: Mutex<LeafCache>,
}

#[derive(Default)]
struct LeafCache {
    by_host: HashMap<Host, Arc<ServerConfig>>,
    oldest_first: VecDeque<Host>,
}

impl LeafCertificates {
    pub(super) fn new() -> Result<Self, InterceptError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let der = PrivatePkcs8KeyDer::from(key.serialized_der().to_vec());
        let signing = provider().key_provider.load_private_key(der.into())?;
        Ok(Self { key, signing, cache: Mutex::default() })
    }

    /// The server configuration with which the proxy answers for this host.
    pub(super) fn for_host(
        &self,
        host: &Host,
        authority: &Authority,
    ) -> Result<Arc<ServerConfig>, InterceptError> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = cache.by_host.get(host) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make(host, authority)?);
        if cache.oldest_first.len() >= MAX_CACHED
            && let Some(oldest) = cache.oldest_first.pop_front()
        {
            cache.by_host.remove(&oldest);
        }
        cache.oldest_first.push_back(host.clone());
        cache.by_host.insert(host.clone(), config.clone());
        Ok(config)
    }

    fn make(&self, host: &Host, authority: &Authority) -> Result<ServerConfig, InterceptError> {
        let leaf = authority.leaf(host, &self.key)?;
        let certified = CertifiedKey::new(vec![leaf.der().clone()], self.signing.clone());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_H1.to_vec()];
        // The client is on the same machine: resuming a session saves less than storing it costs.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// Whether HTTP/2 was negotiated.
pub(super) fn is_h2(connection: &ServerConnection) -> bool {
    connection.alpn_protocol() == Some(ALPN_H2)
}
