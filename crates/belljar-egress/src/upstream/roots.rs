//! Whom the proxy believes when it opens TLS towards a host: whom this host believes.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

pub(crate) const ALPN_H2: &[u8] = b"h2";
pub(crate) const ALPN_H1: &[u8] = b"http/1.1";

/// How connections to hosts are secured.
pub(crate) struct Outside {
    /// HTTP/2 where the host has it.
    pub(crate) any: Arc<ClientConfig>,
    /// For what only HTTP/1.1 can do: to become another protocol.
    pub(crate) h1: Arc<ClientConfig>,
}

impl Outside {
    pub(crate) fn of_host() -> Result<Self, RootsError> {
        Ok(Self::trusting(host_roots()?)?)
    }

    pub(crate) fn trusting(roots: RootCertStore) -> Result<Self, rustls::Error> {
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

/// Named wherever it is needed, so that nobody else in the process decides about it.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RootsError {
    #[error(
        "SSL_CERT_FILE or SSL_CERT_DIR is set, and no certificate that could be used is found there{0}"
    )]
    NothingNamed(String),
    #[error("no TLS towards hosts: {0}")]
    Tls(#[from] rustls::Error),
}

/// Who said which authorities are to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Whoever started this, by `SSL_CERT_FILE` or `SSL_CERT_DIR`.
    Named,
    Nobody,
}

fn host_roots() -> Result<RootCertStore, RootsError> {
    let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(std::env::var_os).iter().any(Option::is_some);
    let found = rustls_native_certs::load_native_certs();
    let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
    believed(found.certs, if named { Said::Named } else { Said::Nobody }, why)
}

/// Those who name authorities mean these and no others. Only a host that has none and was told of none (a bare
/// container) gets Mozilla's, as they were when this was built.
fn believed(
    found: Vec<CertificateDer<'static>>,
    said: Said,
    why: String,
) -> Result<RootCertStore, RootsError> {
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found);
    match (usable, said) {
        (0, Said::Named) => return Err(RootsError::NothingNamed(why)),
        (0, Said::Nobody) => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        _ => {}
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Ca;

    #[test]
    fn who_names_authorities_gets_these_or_none() {
        let broken = CertificateDer::from(vec![1, 2, 3]);
        let count = |found, said| believed(found, said, String::new()).map(|roots| roots.len());
        for found in [vec![], vec![broken.clone()]] {
            assert!(matches!(count(found.clone(), Said::Named), Err(RootsError::NothingNamed(_))));
            assert!(count(found, Said::Nobody).unwrap() > 1);
        }
        for said in [Said::Named, Said::Nobody] {
            assert_eq!(count(vec![broken.clone(), Ca::new().der()], said).unwrap(), 1);
        }
    }
}
