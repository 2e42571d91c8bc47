//! Loads the root certificates that the proxy trusts towards hosts: those of this machine.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

pub(crate) const ALPN_H2: &[u8] = b"h2";
pub(crate) const ALPN_H1: &[u8] = b"http/1.1";

/// TLS client configurations for connections to hosts.
pub(crate) struct ClientTls {
    /// HTTP/2 where the host supports it.
    pub(crate) any: Arc<ClientConfig>,
    /// HTTP/1.1 only, for upgrades.
    pub(crate) h1: Arc<ClientConfig>,
}

impl ClientTls {
    pub(crate) fn from_host() -> Result<Self, RootsError> {
        Ok(Self::with_roots(host_roots()?)?)
    }

    pub(crate) fn with_roots(roots: RootCertStore) -> Result<Self, rustls::Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN_H1.to_vec()];
        let h1 = Arc::new(config.clone());
        config.alpn_protocols.insert(0, ALPN_H2.to_vec());
        Ok(Self { any: Arc::new(config), h1 })
    }
}

/// Passed explicitly, so that no other code in the process chooses the provider.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RootsError {
    #[error("SSL_CERT_FILE or SSL_CERT_DIR is set and names no usable certificate{0}")]
    NoneUsable(String),
    #[error("cannot set up TLS for connections to hosts: {0}")]
    Tls(#[from] rustls::Error),
}

/// Where the root certificates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RootsSource {
    /// Set by `SSL_CERT_FILE` or `SSL_CERT_DIR`.
    Environment,
    System,
}

fn host_roots() -> Result<RootCertStore, RootsError> {
    let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os).iter().any(Option::is_some);
    let found = rustls_native_certs::load_native_certs();
    let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
    select_roots(
        found.certs,
        if named { RootsSource::Environment } else { RootsSource::System },
        why,
    )
}

/// An explicit setting is never extended. Only a host that has no roots and no setting (a bare container) gets
/// Mozilla's, as of the build.
fn select_roots(
    found: Vec<CertificateDer<'static>>,
    source: RootsSource,
    why: String,
) -> Result<RootCertStore, RootsError> {
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found);
    match (usable, source) {
        (0, RootsSource::Environment) => return Err(RootsError::NoneUsable(why)),
        (0, RootsSource::System) => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        _ => {}
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ca;

    #[test]
    fn explicit_roots_are_used_or_none() {
        let broken = CertificateDer::from(vec![1, 2, 3]);
        let count =
            |found, source| select_roots(found, source, String::new()).map(|roots| roots.len());
        for found in [vec![], vec![broken.clone()]] {
            assert!(matches!(
                count(found.clone(), RootsSource::Environment),
                Err(RootsError::NoneUsable(_))
            ));
            assert!(count(found, RootsSource::System).unwrap() > 1);
        }
        for source in [RootsSource::Environment, RootsSource::System] {
            assert_eq!(count(vec![broken.clone(), Ca::new().der()], source).unwrap(), 1);
        }
    }
}
