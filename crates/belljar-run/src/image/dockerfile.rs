//! Finds the base images of a Dockerfile. The engine parses everything else.

use belljar_backend::engine::image::Reference;

/// The Dockerfile that Belljar ships: a base image for the common agents.
pub const AGENT_DOCKERFILE: &str = include_str!("../../../../images/agent.Dockerfile");

/// The images of `FROM` lines, without those with a variable and stages of the same file.
pub(super) fn bases(dockerfile: &[u8]) -> Vec<Reference> {
    let text = String::from_utf8_lossy(dockerfile);
    let mut stages: Vec<String> = vec!["scratch".to_owned()];
    let mut bases = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if !words.next().is_some_and(|word| word.eq_ignore_ascii_case("FROM")) {
            continue;
        }
        let mut words = words.skip_while(|word| word.starts_with("--"));
        let Some(image) = words.next() else { continue };
        if !stages.iter().any(|stage| stage.eq_ignore_ascii_case(image)) {
            bases.extend(Reference::parse(image));
        }
        if words.next().is_some_and(|word| word.eq_ignore_ascii_case("AS")) {
            stages.extend(words.next().map(str::to_owned));
        }
    }
    bases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_found_and_stages_are_not() {
        let file = b"# FROM no\nARG V=1\nfrom --platform=linux/amd64 reg:5000/a:1 AS build\n\
            FROM debian:${V}\nFROM scratch\nFROM build\nFROM quay.io/x AS last\nRUN echo FROM y\n";
        let found: Vec<String> = bases(file).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["reg:5000/a:1", "quay.io/x"]);
    }

    #[test]
    fn the_shipped_one_is_whole() {
        let found: Vec<String> =
            bases(AGENT_DOCKERFILE.as_bytes()).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["debian:stable-slim"]);
        let instruction =
            |word: &str| AGENT_DOCKERFILE.lines().any(|line| line.split(' ').next() == Some(word));
        assert!(["FROM", "ARG", "RUN", "ENV"].into_iter().all(instruction));
        // It is built without a context.
        assert!(!instruction("COPY") && !instruction("ADD"));
        for program in ["git", "nodejs", "npm", "python3", "python3-venv", "ripgrep", "curl"] {
            assert!(AGENT_DOCKERFILE.contains(program), "{program}");
        }
    }
}
