//! The files by which programs inside come to trust the run's own authority. Used by the launcher, which never
//! sees the authority's key.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belljar_spec::egress::{TRUST_BUNDLE, TRUST_CA, TRUST_JAVA};
use belljar_spec::egress_env::JAVA_STORE_PASSWORD;
use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::jks;

/// Writes the run's own certificate, and bundles of it and everything that this host trusts.
pub fn write_bundle(directory: &Path, own_pem: &str) -> io::Result<()> {
    let host = rustls_native_certs::load_native_certs().certs;
    write(directory, own_pem, &host)
}

fn write(directory: &Path, own_pem: &str, host: &[CertificateDer<'_>]) -> io::Result<()> {
    let own = CertificateDer::from_pem_slice(own_pem.as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let own_pem = pem(&own); // as it was understood, and nothing besides
    let mut bundle: String = host.iter().map(|certificate| pem(certificate)).collect();
    bundle.push_str(&own_pem);
    let mut listed = vec![("belljar".to_owned(), own.as_ref())];
    listed.extend(host.iter().enumerate().map(|(at, der)| (format!("host-{at}"), der.as_ref())));
    let java = jks::store(&listed, JAVA_STORE_PASSWORD)?;
    put(&directory.join(TRUST_CA), own_pem.as_bytes())?;
    put(&directory.join(TRUST_BUNDLE), bundle.as_bytes())?;
    put(&directory.join(TRUST_JAVA), &java)
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    // Whatever the launcher's umask is: somebody else reads it inside.
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
    fn the_bundle_holds_the_hosts_and_the_own_one_and_anybody_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let (host, own) = (certificate("host.example"), certificate("own.example"));
        for _ in 0..2 {
            write(directory.path(), &own.pem(), &[host.der().clone()]).unwrap();
        }
        let read = |name| fs::read(directory.path().join(name)).unwrap();
        let certificates = |pem: &[u8]| {
            CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().unwrap()
        };
        assert_eq!(certificates(&read(TRUST_CA)), [own.der().clone()]);
        assert_eq!(certificates(&read(TRUST_BUNDLE)), [host.der().clone(), own.der().clone()]);
        assert_eq!(read(TRUST_JAVA)[8..12], 2u32.to_be_bytes());
        for name in [TRUST_CA, TRUST_BUNDLE, TRUST_JAVA] {
            let mode = fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o444);
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(write(directory.path(), "nothing", &[]).is_err());
    }
}
