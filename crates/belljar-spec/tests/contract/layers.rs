//! Layers: which one wins, which lists add up, and which layer an error names.

use crate::common::{Given, MEMORY};
use belljar_spec::manifest::{HostPath, Limit};
use belljar_spec::{Manifest, Origin, Size, layers};

fn origin(given: &Given<'_>, key: &str) -> String {
    given.settings().origin(key).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn each_layer_wins_over_those_below_and_is_named() {
    let mut given = Given::default();
    assert_eq!(origin(&given, "limits.pids"), "built-in");
    given.system = "[limits]\npids = 1\n";
    assert_eq!(origin(&given, "limits.pids"), "/etc/belljar/config.toml");
    given.user = "[limits]\npids = 2\n";
    assert_eq!(origin(&given, "limits.pids"), "/home/u/.config/c.toml");
    given.manifest = "[limits]\npids = 3\n";
    assert_eq!(origin(&given, "limits.pids"), "/proj/p/belljar.toml");
    given.variables = &[("BELLJAR_LIMITS_PIDS", "4")];
    assert_eq!(origin(&given, "limits.pids"), "the variable BELLJAR_LIMITS_PIDS");
    given.flags = &["limits.pids=5"];
    assert_eq!(origin(&given, "limits.pids"), "-c");
    assert_eq!(given.settings().values.limits.pids, Some(Limit::At(5)));
    assert_eq!(origin(&given, "limits.disk"), "built-in", "others keep theirs");
}

#[test]
fn the_built_in_values_are_the_documented_ones() {
    let limits = Given::default().settings().values.limits;
    assert_eq!(limits.memory, Some(Limit::At(Size(MEMORY / 2))));
    assert_eq!(limits.cpus, Some(Limit::None));
    assert_eq!(limits.pids, Some(Limit::At(2048)));
    assert_eq!(limits.time, Some(Limit::None));
    assert_eq!(limits.idle, Some(Limit::None));
    assert_eq!(limits.output, Some(Size(256 << 20)));
    assert_eq!(limits.disk, Some(Limit::At(Size(10 << 30))));
    assert_eq!(limits.stop_timeout.unwrap().as_millis(), 10_000);
    let unknown = layers::built_in(None).limits.memory;
    assert_eq!(unknown, Some(Limit::None), "half of nothing is no limit");
}

#[test]
fn some_lists_add_up_and_others_replace() {
    let settings = Given {
        user: "[sandbox]\ntools = ['~/a']\nenv = { A = '1', B = '1' }\n[network]\nallow = ['a', 'b']\n[policy]\nrequire = ['id.unique']\n",
        manifest: "[sandbox]\ntools = ['b']\nenv = { B = '2' }\n[network]\nallow = ['c']\n[policy]\nrequire = ['limit.cpu']\n",
        ..Given::default()
    }
    .settings();
    let sandbox = &settings.values.sandbox;
    let tools = &sandbox.tools.as_ref().unwrap().0;
    assert_eq!(*tools, [HostPath::from("/home/u/a"), HostPath::from("/proj/p/b")]);
    let env = &sandbox.env.as_ref().unwrap().0;
    assert_eq!((env["A"].to_str(), env["B"].to_str()), (Some("1"), Some("2")));
    assert_eq!(settings.values.network.allow, Some(vec!["c".to_owned()]));
    assert_eq!(settings.values.policy.require.as_ref().unwrap().0.len(), 2);
    let rank = |key: &str| settings.origin(key).unwrap().rank();
    assert!(rank("sandbox.tools[0]") < rank("sandbox.tools[1]"));
    assert!(rank("sandbox.env.A") < rank("sandbox.env.B"));
}

#[test]
fn relative_paths_start_where_their_layer_is() {
    let settings = Given {
        user: "[sandbox]\ntools = ['./t']\n",
        manifest: "[sandbox]\nrootfs = '../root'\nmounts = [{ source = 'd', target = '/d' }]\n",
        flags: &["sandbox.workspace.path=.."],
        ..Given::default()
    }
    .settings();
    let sandbox = &settings.values.sandbox;
    assert_eq!(sandbox.tools.as_ref().unwrap().0[0], "/home/u/.config/t".into());
    assert_eq!(sandbox.mounts.as_ref().unwrap().0[0].source, "/proj/p/d".into());
    assert_eq!(sandbox.workspace.path, Some("/proj/p".into()));
    let rootfs = belljar_spec::manifest::RootfsSetting::Directory("/proj/root".into());
    assert_eq!(sandbox.rootfs, Some(rootfs));
}

#[test]
fn variables_reach_every_key() {
    for key in Manifest::keys() {
        let name = format!("BELLJAR_{}", key.to_ascii_uppercase().replace('.', "_"));
        let nonsense = layers::from_variable(&name, "\u{1}");
        // Read as this key's value, or refused as one: never "no such setting".
        if let Err(error) = nonsense {
            assert!(
                error.key.starts_with(&key) || error.key == key.split('.').next().unwrap(),
                "{key}: {error}"
            );
        }
    }
}

#[test]
fn variables_are_values_words_or_lists() {
    let settings = Given {
        variables: &[
            ("BELLJAR_LIMITS_MEMORY", "2g"),
            ("BELLJAR_NETWORK_ALLOW", "a.example, b.example:8443"),
            ("BELLJAR_SANDBOX_WORKSPACE_MODE", "ro"),
            ("BELLJAR_SANDBOX_NAME", "5"),
            ("BELLJAR_SANDBOX_ENV", "{ A = 'x' }"),
            ("BELLJAR_HOME", "/x"),
            ("BELLJAR_TEST_ANYTHING", "x"),
        ],
        ..Given::default()
    }
    .settings();
    assert_eq!(settings.values.limits.memory, Some(Limit::At(Size(2 << 30))));
    let hosts = vec!["a.example".to_owned(), "b.example:8443".to_owned()];
    assert_eq!(settings.values.network.allow, Some(hosts));
    assert_eq!(settings.values.sandbox.name.unwrap().as_str(), "5");
    assert_eq!(settings.values.sandbox.env.unwrap().0["A"].to_str(), Some("x"));
}

#[test]
fn a_variable_that_is_no_setting_is_named_with_the_nearest() {
    let wrong = layers::from_variable("BELLJAR_LIMIT_MEMORY", "2g").unwrap_err().to_string();
    assert!(wrong.contains("BELLJAR_LIMIT_MEMORY"), "{wrong}");
    assert!(wrong.contains("did you mean BELLJAR_LIMITS_MEMORY?"), "{wrong}");
    let wrong = layers::from_variable("BELLJAR_LOGS", "debug").unwrap_err().to_string();
    assert!(wrong.contains("did you mean BELLJAR_LOG?"), "{wrong}");
    for unknown in ["BELLJAR_SOMETHING_ELSE", "BELLJAR_X", "BELLJAR_"] {
        assert_eq!(layers::from_variable(unknown, "x"), Ok(layers::Variable::Unknown), "{unknown}");
    }
    let bad = layers::from_variable("BELLJAR_LIMITS_MEMORY", "lots").unwrap_err().to_string();
    assert!(bad.starts_with("the variable BELLJAR_LIMITS_MEMORY: limits.memory: "), "{bad}");
}

#[test]
fn an_assignment_takes_quoted_keys_and_bare_values() {
    let parsed = layers::from_assignment("policy.waive.\"fs.quota\"=no disk here").unwrap();
    assert_eq!(parsed.policy.waive.unwrap().0["fs.quota"], "no disk here");
    let parsed = layers::from_assignment("sandbox.mounts=[{source='a',target='/b'}]").unwrap();
    assert_eq!(parsed.sandbox.mounts.unwrap().0.len(), 1);
    let parsed = layers::from_assignment("sandbox.env.\"A.B\"=x=y").unwrap();
    assert_eq!(parsed.sandbox.env.unwrap().0["A.B"].to_str(), Some("x=y"));
    for (bad, want) in [
        ("limits.memory", "write key=value"),
        ("limits.memroy=2g", "did you mean \"memory\"?"),
        ("limits..memory=2g", "the key is malformed"),
        ("limits.memory=big", "\"big\" is not a size"),
        ("=x", "the key is malformed"),
    ] {
        let error = layers::from_assignment(bad).unwrap_err().to_string();
        assert!(error.starts_with(&format!("-c {bad}: ")) && error.contains(want), "{error}");
    }
}

#[test]
fn what_is_shown_has_every_value_once_with_its_origin() {
    let settings = Given {
        manifest: "[sandbox]\nenv = { A = 'x' }\nmounts = [{ source = 'd', target = '/d' }]\n[policy]\nwaive = { 'fs.quota' = 'why' }\n",
        flags: &["network.allow=['h']"],
        ..Given::default()
    }
    .settings();
    let shown = settings.shown();
    let line = |key: &str| {
        let found: Vec<_> = shown.iter().filter(|line| line.key == key).collect();
        assert_eq!(found.len(), 1, "{key}");
        (found[0].value.clone(), found[0].origin.clone())
    };
    let manifest = Origin::Manifest("/proj/p/belljar.toml".into());
    assert_eq!(line("sandbox.env.A"), ("\"x\"".to_owned(), manifest.clone()));
    assert_eq!(line("policy.waive.\"fs.quota\""), ("\"why\"".to_owned(), manifest.clone()));
    assert_eq!(line("network.allow"), ("[\"h\"]".to_owned(), Origin::Flag("-c".into())));
    assert_eq!(line("limits.pids"), ("2048".to_owned(), Origin::BuiltIn));
    let mount = "{ source = \"/proj/p/d\", target = \"/d\" }".to_owned();
    assert_eq!(line("sandbox.mounts[0]"), (mount, manifest));
}
