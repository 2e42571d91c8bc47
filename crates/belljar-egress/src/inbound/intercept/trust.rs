//! Writes the certificate files by which programs in the sandbox trust the run's authority.
//!
//! Used by the launcher, which never sees the authority's key.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_spec::egress::{TRUST_BUNDLE, TRUST_CA, TRUST_JAVA};
use belljar_spec::egress_env::JAVA_STORE_PASSWORD;
use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::inbound::intercept::java_keystore;

/// Writes the run's CA certificate, and bundles of it and the host's trusted roots.
pub fn write_bundle(directory: &Path, ca_pem: &str) -> io::Result<()> {
    let host_roots = rustls_native_certs::load_native_certs().certs;
    write(directory, ca_pem, &host_roots)
}

fn write(directory: &Path, ca_pem: &str, host_roots: &[CertificateDer<'_>]) -> io::Result<()> {
    let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let ca_pem = pem(&ca); // re-encoded from what was parsed, so that nothing else is written
    let mut bundle: String = host_roots.iter().map(|certificate| pem(certificate)).collect();
    bundle.push_str(&ca_pem);
    let mut listed = vec![("belljar".to_owned(), ca.as_ref())];
    listed.extend(
        host_roots.iter().enumerate().map(|(at, der)| (format!("host-{at}"), der.as_ref())),
    );
    let java = java_keystore::store(&listed, JAVA_STORE_PASSWORD)?;
    write_file(&directory.join(TRUST_CA), ca_pem.as_bytes())?;
    write_file(&directory.join(TRUST_BUNDLE), bundle.as_bytes())?;
    write_file(&directory.join(TRUST_JAVA), &java)
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    // Whatever the launcher's umask is: another user reads it in the sandbox.
    file.set_permissions(Permissions::from_mode(0o444))
}

fn pem(certificate: &[u8]) -> String {
    let text = BASE64.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> rcgen::Certificate {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap()
    }

    #[test]
    fn the_bundle_has_the_host_roots_and_the_ca_and_is_world_readable() {
        let directory = tempfile::tempdir().unwrap();
        let (host_roots, ca) = (certificate("host.example"), certificate("own.example"));
        for _ in 0..2 {
            write(directory.path(), &ca.pem(), &[host_roots.der().clone()]).unwrap();
        }
        let read = |name| fs::read(directory.path().join(name)).unwrap();
        let certificates = |pem: &[u8]| {
            CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().unwrap()
        };
        assert_eq!(certificates(&read(TRUST_CA)), [ca.der().clone()]);
        assert_eq!(certificates(&read(TRUST_BUNDLE)), [host_roots.der().clone(), ca.der().clone()]);
        assert_eq!(read(TRUST_JAVA)[8..12], 2u32.to_be_bytes());
        for name in [TRUST_CA, TRUST_BUNDLE, TRUST_JAVA] {
            let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o444);
        }
    }

    #[test]
    fn text_that_is_not_a_certificate_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(write(directory.path(), "nothing", &[]).is_err());
    }
}
