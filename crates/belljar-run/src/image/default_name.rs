//! Derives the default name of an image.

use std::path::Path;

use belljar_spec::OsText;

/// `belljar-` and `NAME` of `NAME.Dockerfile`, or else the name of the context directory. Without a slash, so that it
/// names no registry.
pub(super) fn default_name(dockerfile: &Path, context: &Path) -> String {
    let shown = |path: &Path| OsText::from(path).to_string();
    let file = dockerfile.file_name().map(|name| shown(Path::new(name))).unwrap_or_default();
    let stem = file.strip_suffix(".Dockerfile").or_else(|| file.strip_suffix(".dockerfile"));
    let directory = context.file_name().map(|name| shown(Path::new(name)));
    let base = match stem {
        Some(stem) => stem.to_owned(),
        None => directory.unwrap_or_default(),
    };
    let plain = base.to_ascii_lowercase();
    let plain = plain.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    let mut name = plain.take(8).collect::<Vec<_>>().join("-");
    name.truncate(100);
    match name.trim_end_matches('-') {
        "" => "belljar-image".to_owned(),
        name => format!("belljar-{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_backend::engine::image::Reference;

    #[test]
    fn every_directory_gives_a_name_that_engines_take() {
        for (file, context, expected) in [
            ("/w/images/agent.Dockerfile", "/w/images", "belljar-agent"),
            ("/w/My Project_2/Dockerfile", "/w/My Project_2", "belljar-my-project-2"),
            ("/Dockerfile", "/", "belljar-image"),
            ("/ä/Dockerfile", "/ä", "belljar-image"),
            ("/x/.Dockerfile", "/x", "belljar-image"),
        ] {
            let name = default_name(Path::new(file), Path::new(context));
            assert_eq!(name, expected);
            assert!(Reference::parse(&name).is_ok());
        }
        let long = format!("/{}", "a_".repeat(200));
        assert!(
            Reference::parse(&default_name(Path::new("/Dockerfile"), Path::new(&long))).is_ok()
        );
    }
}
