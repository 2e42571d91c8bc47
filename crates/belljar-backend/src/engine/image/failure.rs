//! Explains why an engine could not fetch or build an image, and what to do.

use belljar_image::{DOCKER_HUB, Reference};
use belljar_spec::text::escape;

use super::{command, how_to_build};
use crate::engine::api::{Api, ApiError};
use crate::error::ImageError;

/// A longer message is cut.
const MAX_LENGTH: usize = 1000;

/// The engine itself is the trouble.
pub(super) fn of_engine(error: &ApiError) -> ImageError {
    ImageError {
        why: printable(&belljar_spec::text::error_chain(error)),
        fix: "see the engine's log".to_owned(),
    }
}

/// An engine's message can hold what a registry or a Dockerfile made up.
pub(super) fn printable(message: &str) -> String {
    let mut shown: String = escape(message.trim().as_bytes()).replace("\\u{a}", " ");
    if let Some((cut, _)) = shown.char_indices().nth(MAX_LENGTH) {
        shown.truncate(cut);
        shown.push('…');
    }
    shown
}

/// A pull failed. `trouble` is what went wrong with the credentials before.
pub(super) fn of_pull(
    api: &Api,
    reference: &Reference,
    message: &str,
    trouble: Option<&str>,
) -> ImageError {
    let mut why = format!("cannot fetch \"{reference}\": {}", printable(message));
    let cause = cause(message);
    if let Some(trouble) = trouble {
        why.push_str(&format!("; and no credentials were used: {}", printable(trouble)));
    }
    let command = command(api);
    if let Some(build) = how_to_build(reference) {
        return ImageError { why, fix: build };
    }
    let fix = match cause {
        Cause::Credentials => match reference.registry() {
            DOCKER_HUB => {
                format!("log in ({command} login), or check that the name is right")
            }
            registry => format!("log in: {command} login {registry}"),
        },
        Cause::Missing => "check its name and tag; the registry does not have it".to_owned(),
        Cause::Network => format!(
            "the engine cannot reach {}; check its network, or bring the image in by hand: \
             {command} load",
            reference.registry()
        ),
        Cause::Other => format!("try it by hand: {command} pull {reference}"),
    };
    ImageError { why, fix }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Credentials,
    Missing,
    Network,
    Other,
}

/// Engines report it as text only.
fn cause(message: &str) -> Cause {
    let message = message.to_ascii_lowercase();
    let contains = |phrases: &[&str]| phrases.iter().any(|phrase| message.contains(phrase));
    if contains(&[
        "unauthorized",
        "authentication required",
        "access denied",
        "access to the resource is denied",
        "no basic auth",
        "access forbidden",
        "invalid username/password",
    ]) {
        Cause::Credentials
    } else if contains(&["manifest unknown", "not found", "name unknown", "does not exist"]) {
        Cause::Missing
    } else if contains(&[
        "dial tcp",
        "no such host",
        "connection refused",
        "i/o timeout",
        "network is unreachable",
        "tls handshake",
        "client.timeout",
    ]) {
        Cause::Network
    } else {
        Cause::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_that_engines_tell() {
        for (message, expected) in [
            ("Head \"http://r/v2/a/manifests/1\": no basic auth credentials", Cause::Credentials),
            (
                "pull access denied for x, repository does not exist or may require 'docker login'",
                Cause::Credentials,
            ),
            ("unauthorized: authentication required", Cause::Credentials),
            ("manifest for r/a:1 not found: manifest unknown", Cause::Missing),
            ("Get \"https://r/v2/\": dial tcp: lookup r: no such host", Cause::Network),
            ("toomanyrequests: slow down", Cause::Other),
        ] {
            assert_eq!(cause(message), expected, "{message}");
        }
    }

    #[test]
    fn a_message_cannot_drive_a_terminal_nor_fill_it() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\n"), "a\\u{1b}[2Jb c");
        assert_eq!(printable(&"x".repeat(5000)).chars().count(), MAX_LENGTH + 1);
    }
}
