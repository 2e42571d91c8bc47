//! Trust: a manifest that opens something is shown before it counts.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use crate::support::{Flags, World};
use belljar_run::config::trust::{self, Store, TrustError, TrustState};
use belljar_run::config::{self, ConfigError, ManifestSource};

const OPENS_A_HOST: &str = "[network]\nallow = ['api.example:443']\n";

fn standing(world: &World) -> Option<TrustState> {
    match config::load_settings(&world.invocation(Flags::default()), &world.home) {
        Ok(_) => None,
        Err(ConfigError::Untrusted { standing, .. }) => Some(standing),
        Err(other) => panic!("another error: {other}"),
    }
}

#[test]
fn a_harmless_manifest_needs_no_trust() {
    let world = World::new();
    world.manifest("[sandbox]\nname = 'x'\nhide = ['.env']\n[limits]\npids = 10\n");
    assert_eq!(world.load(Flags::default()).unwrap().spec.limits.pids, Some(10));
    assert!(!world.home.path().join("trust.json").exists());
}

#[test]
fn refused_then_trusted_then_changed_then_refused_again() {
    let world = World::new();
    let path = world.manifest(OPENS_A_HOST);
    let refused = world.refused(Flags::default());
    assert!(refused.contains("is not trusted yet"), "{refused}");
    assert!(refused.contains("network.allow: lets the run reach api.example:443"), "{refused}");
    assert!(refused.contains(&format!("belljar trust {}", path.display())), "{refused}");

    world.trust(&path);
    assert_eq!(world.load(Flags::default()).unwrap().spec.network_allow, ["api.example:443"]);

    world.manifest(&format!("{OPENS_A_HOST}# changed\n"));
    assert_eq!(standing(&world), Some(TrustState::Changed));
    assert!(world.refused(Flags::default()).contains("has changed since it was trusted"));

    world.manifest(OPENS_A_HOST);
    assert_eq!(standing(&world), None, "what was trusted is trusted");
}

#[test]
fn the_named_manifest_is_trusted_for_that_run_only() {
    let world = World::new();
    let path = world.manifest(OPENS_A_HOST);
    let mut named = world.invocation(Flags::default());
    named.source = ManifestSource::File(path);
    assert!(config::load(&named, &world.home).is_ok());
    assert_eq!(standing(&world), Some(TrustState::Unknown));
}

#[test]
fn trust_is_of_one_path() {
    let world = World::new();
    world.trust(&world.manifest(OPENS_A_HOST));
    assert_eq!(standing(&world), None);
    world.write("user/project/sub/belljar.toml", OPENS_A_HOST);
    let sub = world.invocation_in(&world.project().join("sub"), Flags::default());
    let refused = config::load(&sub, &world.home);
    assert!(matches!(refused, Err(ConfigError::Untrusted { standing: TrustState::Unknown, .. })));
}

#[test]
fn trust_covers_the_files_that_the_manifest_names() {
    let world = World::new();
    let path = world.manifest("[sandbox]\nenv_file = ['vars']\n[agent]\nprompt_file = 'P.md'\n");
    let vars = world.write("user/project/vars", "A=1\n");
    let prompt = world.write("user/project/P.md", "do it");
    world.trust(&path);
    assert_eq!(standing(&world), None);
    assert!(world.load(Flags::default()).is_ok());
    fs::write(&vars, "A=2\n").unwrap();
    assert_eq!(standing(&world), Some(TrustState::Changed));
    fs::write(&vars, "A=1\n").unwrap();
    assert_eq!(standing(&world), None);
    fs::write(&prompt, "do something else").unwrap();
    assert_eq!(standing(&world), Some(TrustState::Changed));
    fs::remove_file(&prompt).unwrap();
    assert_eq!(standing(&world), Some(TrustState::Changed));
}

#[test]
fn a_planted_link_is_not_followed_for_a_variable_file() {
    let world = World::new();
    let path = world.manifest("[sandbox]\nenv_file = ['vars']\n");
    let vars = world.write("user/project/vars", "A=1\n");
    world.trust(&path);
    assert!(world.load(Flags::default()).is_ok());
    let secret = world.write("user/secret", "A=1\n");
    fs::remove_file(&vars).unwrap();
    symlink(secret, &vars).unwrap();
    assert!(world.refused(Flags::default()).contains("is a symbolic link"));
}

#[test]
fn a_strangers_manifest_above_is_shown_first() {
    let world = World::new();
    let path = world.manifest("[sandbox]\nname = 'x'\n");
    let sub = world.invocation_in(&world.project().join("sub"), Flags::default());
    assert!(config::load(&sub, &world.home).is_ok());
    let other = fs::metadata(&path).unwrap().uid() + 1;
    if std::os::unix::fs::chown(&path, Some(other), None).is_err() {
        // Only root can give a file away. The rule itself has a unit test.
        return;
    }
    let refused = config::load(&sub, &world.home).unwrap_err();
    let owner = format!("belongs to user {other}");
    assert!(refused.to_string().contains(&owner), "{refused}");
    assert_eq!(standing(&world), None, "in its own directory it widens nothing");
    world.trust(&path);
    assert!(config::load(&sub, &world.home).is_ok());
}

#[test]
fn only_what_was_examined_becomes_trusted() {
    let world = World::new();
    let path = world.manifest(OPENS_A_HOST);
    let examined = trust::examine(&path, &world.env, &world.home).unwrap();
    assert_eq!(examined.widenings.len(), 1);
    world.manifest("[network]\nallow = ['evil.example']\n");
    trust::trust(&examined, &world.home).unwrap();
    assert_eq!(standing(&world), Some(TrustState::Changed));
    world.manifest(OPENS_A_HOST);
    assert_eq!(standing(&world), None);
}

#[test]
fn trust_can_be_taken_back() {
    let world = World::new();
    let path = world.manifest(OPENS_A_HOST);
    world.trust(&path);
    world.trust(&path);
    assert_eq!(standing(&world), None);
    assert_eq!(trust::distrust(&path, &world.home).unwrap(), TrustState::Trusted);
    assert_eq!(standing(&world), Some(TrustState::Unknown));
    assert_eq!(trust::distrust(&path, &world.home).unwrap(), TrustState::Unknown);
}

#[test]
fn a_directory_stands_for_its_manifest() {
    let world = World::new();
    let path = world.manifest(OPENS_A_HOST);
    let examined = trust::examine(&world.project(), &world.env, &world.home).unwrap();
    assert_eq!(examined.path, path);
    let missing = trust::examine(&world.user(), &world.env, &world.home);
    assert!(matches!(missing, Err(ConfigError::Trust(TrustError::NoManifest(_)))));
}

#[test]
fn a_broken_store_trusts_nothing() {
    let world = World::new();
    let path = world.manifest(OPENS_A_HOST);
    world.trust(&path);
    let store = world.home.path().join("trust.json");
    for broken in ["", "[]", "{\"v\":2,\"trusted\":[]}", "\u{0}"] {
        fs::write(&store, broken).unwrap();
        let refused = world.refused(Flags::default());
        assert!(refused.contains("is damaged"), "{refused}");
    }
    fs::remove_file(&store).unwrap();
    assert_eq!(standing(&world), Some(TrustState::Unknown));
    assert!(Store::open(&world.home).is_ok());
}

#[test]
fn two_at_once_lose_nothing() {
    let world = World::new();
    let paths: Vec<_> =
        (0..8).map(|n| world.write(&format!("user/p{n}/belljar.toml"), OPENS_A_HOST)).collect();
    std::thread::scope(|scope| {
        for path in &paths {
            scope.spawn(|| world.trust(path));
        }
    });
    for path in &paths {
        let examined = trust::examine(path, &world.env, &world.home).unwrap();
        assert_eq!(examined.standing, TrustState::Trusted, "{}", path.display());
    }
}

#[test]
fn a_source_behind_a_link_is_shown_with_where_it_leads() {
    let world = World::new();
    let outside = world.root().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(world.project().join("inside")).unwrap();
    symlink(&outside, world.project().join("w")).unwrap();
    symlink("inside", world.project().join("in")).unwrap();
    for text in [
        "[sandbox]\nworkspace = { path = 'w' }\n",
        "[sandbox]\nworkspace = { path = 'w', mode = 'ro' }\n",
        "[sandbox]\nworkspace = { path = 'in/../w' }\n",
        "[sandbox]\nmounts = [{ source = 'w', target = '/d' }]\n",
        "[sandbox]\nrootfs = 'w'\n",
        // Where it leads now is harmless, and a run or a pull could lead it elsewhere.
        "[sandbox]\nworkspace = { path = 'in' }\n",
    ] {
        world.manifest(text);
        let refused = world.refused(Flags::default());
        assert!(refused.contains("is a link to"), "{text}: {refused}");
    }
    world.manifest("[sandbox]\nworkspace = { path = 'inside' }\n");
    let loaded = world.load(Flags::default()).unwrap();
    let tree = loaded.spec.untrusted_tree.expect("its links are not followed later either");
    assert_eq!(tree.as_path(), world.project().canonicalize().unwrap());
}

#[test]
fn a_link_that_leads_elsewhere_is_another_manifest() {
    let world = World::new();
    for name in ["one", "two"] {
        fs::create_dir(world.root().join(name)).unwrap();
    }
    let link = world.project().join("w");
    symlink(world.root().join("one"), &link).unwrap();
    let path = world.manifest("[sandbox]\nworkspace = { path = 'w' }\n");
    world.trust(&path);
    assert_eq!(standing(&world), None);
    let loaded = world.load(Flags::default()).unwrap();
    assert_eq!(loaded.spec.untrusted_tree, None);
    fs::remove_file(&link).unwrap();
    symlink(world.root().join("two"), &link).unwrap();
    assert_eq!(standing(&world), Some(TrustState::Changed));
}

#[test]
fn the_users_own_configuration_is_not_loosened() {
    let world = World::new();
    world.write("user/.config/belljar/config.toml", "[limits]\nmemory = '1g'\n");
    world.manifest("[limits]\nmemory = '1g'\n");
    assert_eq!(standing(&world), None);
    let path = world.manifest("[limits]\nmemory = '2g'\n");
    assert_eq!(standing(&world), Some(TrustState::Unknown));
    let shown = trust::examine(&path, &world.env, &world.home).unwrap();
    assert_eq!(shown.widenings.len(), 1);
    world.trust(&path);
    assert_eq!(standing(&world), None);
}
