//! Sends requests to an engine over its socket. The engines' own commands are not needed for it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use belljar_testkit::http;

use super::text;

/// Belljar puts this on every container of its.
const LABEL_OWNER: &str = "belljar.owner";
const PING_SILENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Belljars,
    Everybodys,
}

/// Whether something that speaks the API listens there.
pub(super) fn answers(socket: &Path) -> bool {
    http::get_within(socket, "/_ping", PING_SILENCE).is_ok_and(|answer| answer.is_good())
}

/// Ids.
pub(super) fn containers(socket: &Path, whose: Whose) -> Result<Vec<String>> {
    let filter = match whose {
        Whose::Belljars => format!("&filters={}", encoded(&json!({ "label": [LABEL_OWNER] }))),
        Whose::Everybodys => String::new(),
    };
    let answer = http::get(socket, &format!("/containers/json?all=1{filter}"))
        .and_then(http::Answer::good)
        .context("cannot list the containers")?;
    let all: Value = serde_json::from_slice(&answer.body).context("the list is not JSON")?;
    Ok(all.as_array().into_iter().flatten().filter_map(|one| text(&one["Id"])).collect())
}

pub(super) fn remove(socket: &Path, container: &str) -> Result<()> {
    let target = format!("/containers/{container}?force=1&v=1");
    let answer = http::delete(socket, &target).context("cannot reach the engine")?;
    ensure!(answer.is_good() || answer.status == 404, "the engine answered: {}", answer.text());
    Ok(())
}

/// Makes an image of a tar file with its tree, under this name.
pub(super) fn import(socket: &Path, archive: &[u8], name: &str) -> Result<()> {
    let (repository, tag) = name.rsplit_once(':').context("an image's name without a tag")?;
    let target = format!("/images/create?fromSrc=-&repo={repository}&tag={tag}");
    let answer = http::post(socket, &target, "application/x-tar", archive)
        .and_then(http::Answer::good)
        .with_context(|| format!("cannot import the image {name}"))?;
    // A line of JSON for each progress message; the last one has the id.
    let output = answer.text();
    let id = output.lines().rev().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        text(&line["status"]).filter(|status| status.starts_with("sha256:"))
    });
    let id = id.with_context(|| format!("the import of {name} gave no image: {output}"))?;
    // Podman's import does not heed the tag.
    let target = format!("/images/{id}/tag?repo={repository}&tag={tag}");
    http::post(socket, &target, "application/json", &[])
        .and_then(http::Answer::good)
        .with_context(|| format!("cannot name the image {name}"))?;
    Ok(())
}

/// Runs a container to its end: whether an engine works is found out by using it.
pub(super) fn try_out(socket: &Path, image: &str, runtime: Option<&str>) -> Result<()> {
    let body = json!({
        "Image": image, "Cmd": ["sh", "-c", "exit 7"], "NetworkDisabled": true,
        "HostConfig": { "NetworkMode": "none", "Runtime": runtime },
    });
    let post = |target: &str, body: &[u8]| {
        http::post(socket, target, "application/json", body).and_then(http::Answer::good)
    };
    let made = post("/containers/create", body.to_string().as_bytes())
        .context("cannot make a container to try it out")?;
    let made: Value = serde_json::from_slice(&made.body).context("the answer is not JSON")?;
    let id = text(&made["Id"]).context("a container without an id")?;
    let ran = post(&format!("/containers/{id}/start"), &[])
        .context("cannot start a container to try it out")
        .and_then(|_| {
            post(&format!("/containers/{id}/wait"), &[]).context("a container does not end")
        });
    remove(socket, &id)?;
    let ended: Value = serde_json::from_slice(&ran?.body).context("the answer is not JSON")?;
    ensure!(ended["StatusCode"] == 7, "a container that was to end with 7 gave {ended}");
    Ok(())
}

/// Until it answers; `still_there` returns why it never will.
pub(super) fn wait_until_it_answers(
    socket: &Path,
    limit: Duration,
    mut still_there: impl FnMut() -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !answers(socket) {
        still_there()?;
        if Instant::now() >= deadline {
            bail!("no response in {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// For a query: everything but letters and digits as `%XX`.
fn encoded(value: &Value) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    value.to_string().bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_fits_into_a_query() {
        assert_eq!(encoded(&json!({ "label": ["a.b"] })), "%7B%22label%22%3A%5B%22a%2Eb%22%5D%7D");
    }
}
