//! Writes a Java keystore (JKS) that contains only trusted certificates.
//!
//! Every Java version reads this format, whatever its default type is.

use std::io;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;
/// Part of the format: hashed between the password and the store.
const WHITENER: &[u8] = b"Mighty Aphrodite";

/// The certificates are DER, each with its alias.
pub(crate) fn store(certificates: &[(String, &[u8])], password: &str) -> io::Result<Vec<u8>> {
    let mut store = Vec::new();
    store.extend(MAGIC.to_be_bytes());
    store.extend(VERSION.to_be_bytes());
    store.extend(length::<u32>(certificates.len())?.to_be_bytes());
    for (alias, der) in certificates {
        store.extend(TRUSTED_CERTIFICATE.to_be_bytes());
        text(&mut store, alias)?;
        store.extend(0u64.to_be_bytes()); // creation time, fixed so that the same certificates give the same store
        text(&mut store, "X.509")?;
        store.extend(length::<u32>(der.len())?.to_be_bytes());
        store.extend(*der);
    }
    let digest = digest(&store, password);
    store.extend(digest);
    Ok(store)
}

/// Detects a damaged store. It is no protection against tampering: the password is public.
fn digest(store: &[u8], password: &str) -> Vec<u8> {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    for unit in password.encode_utf16() {
        context.update(&unit.to_be_bytes());
    }
    context.update(WHITENER);
    context.update(store);
    context.finish().as_ref().to_vec()
}

/// Only ASCII is written, where modified UTF-8 equals UTF-8.
fn text(store: &mut Vec<u8>, text: &str) -> io::Result<()> {
    store.extend(length::<u16>(text.len())?.to_be_bytes());
    store.extend(text.as_bytes());
    Ok(())
}

fn length<N: TryFrom<usize>>(length: usize) -> io::Result<N> {
    N::try_from(length).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;

    use super::*;

    #[test]
    fn a_store_has_the_bytes_that_java_expects() {
        let made = store(&[("a".to_owned(), b"DER")], "changeit").unwrap();
        let (body, digest) = made.split_at(made.len() - 20);
        let expected =
            "feedfeed00000002000000010000000200016100000000000000000005582e35303900000003444552";
        assert_eq!(HEXLOWER.encode(body), expected);
        // printf '%s' changeit | iconv -t utf-16be, the whitener and the bytes above, through sha1sum
        assert_eq!(HEXLOWER.encode(digest), DIGEST);
    }

    const DIGEST: &str = "832730b225892cabeb089f2e296c0902a88df523";
}
