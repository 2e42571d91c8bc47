//! The certificate authority of the test network, and its servers' certificates.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::names::{CERTIFIED, UNTRUSTED};
use super::{WorldError, forward};

/// Shows a good certificate for every name but one.
#[derive(Debug)]
struct ByName {
    good: Arc<CertifiedKey>,
    bad: Arc<CertifiedKey>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_bad = hello.server_name() == Some(UNTRUSTED);
        Some(Arc::clone(if is_bad { &self.bad } else { &self.good }))
    }
}

/// What the servers use, and their authority as PEM.
pub(super) fn make() -> Result<(Arc<ServerConfig>, String), WorldError> {
    let made = |error: rcgen::Error| WorldError::Certificate(error.to_string());
    let key = KeyPair::generate().map_err(made)?;
    let mut authority = CertificateParams::new(Vec::new()).map_err(made)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority.distinguished_name.push(DnType::CommonName, "the world of a belljar test");
    let pem = authority.self_signed(&key).map_err(made)?.pem();
    let issuer = Issuer::new(authority, key);

    let key = KeyPair::generate().map_err(made)?;
    let names: Vec<&str> = CERTIFIED.iter().copied().chain(forward::names()).collect();
    let leaf = leaf(&names)?.signed_by(&key, &issuer).map_err(made)?;
    let good = certified(leaf.der().clone(), &key)?;
    let key = KeyPair::generate().map_err(made)?;
    let own = leaf_of_nobody(&key)?;
    let bad = certified(own, &key)?;

    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| WorldError::Certificate(error.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ByName { good, bad }));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), pem))
}

fn leaf(names: &[&str]) -> Result<CertificateParams, WorldError> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)
        .map_err(|error| WorldError::Certificate(error.to_string()))?;
    params.distinguished_name.push(DnType::CommonName, "a server of the world");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn leaf_of_nobody(key: &KeyPair) -> Result<CertificateDer<'static>, WorldError> {
    let signed = leaf(&[UNTRUSTED])?.self_signed(key);
    Ok(signed.map_err(|error| WorldError::Certificate(error.to_string()))?.der().clone())
}

fn certified(
    certificate: CertificateDer<'static>,
    key: &KeyPair,
) -> Result<Arc<CertifiedKey>, WorldError> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = ring::sign::any_supported_type(&key)
        .map_err(|error| WorldError::Certificate(error.to_string()))?;
    Ok(Arc::new(CertifiedKey::new(vec![certificate], key)))
}
