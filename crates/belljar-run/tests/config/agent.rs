//! An agent in the settings: its preset, its prompt, its program, its login.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::support::{Flags, World};
use belljar_run::config::{self, ConfigError, Loaded, ManifestSource};
use belljar_spec::egress::SecretPlace;
use belljar_spec::manifest::AgentKind;
use belljar_spec::{AgentSpec, MainCommand, MountMode};

fn flags() -> Flags {
    Flags::default().with("--agent", "claude").with("--prompt", "do it")
}

fn load(world: &World, flags: Flags) -> Result<Loaded, ConfigError> {
    let mut invocation = world.invocation(flags);
    invocation.command = MainCommand::Agent;
    config::load(&invocation, &world.home)
}

fn refused(world: &World, flags: Flags) -> String {
    load(world, flags).unwrap_err().to_string()
}

fn agent(loaded: &Loaded) -> &AgentSpec {
    &loaded.spec.agent.as_ref().expect("an agent").agent
}

fn with(world: &mut World, name: &str, value: &str) {
    world.env.insert(name.into(), value.into());
}

/// A world with the agents' programs in a directory of the user's `PATH`.
fn installed() -> World {
    let mut world = World::new();
    for kind in ["claude", "codex", "gemini"] {
        executable(&world, &format!("user/agents/{kind}"), "\x7fELF");
    }
    let path = world.user().join("agents");
    with(&mut world, "PATH", path.to_str().unwrap());
    world
}

/// A program called `claude` in a directory of the user's `PATH`.
fn install(world: &mut World) -> PathBuf {
    let program = world.write("user/apps/claude-1.2", "\x7fELF");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let bin = world.user().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(&program, bin.join("claude")).unwrap();
    with(world, "PATH", bin.to_str().unwrap());
    program
}

#[test]
fn the_preset_is_added_and_reported() {
    let mut world = installed();
    let program = install(&mut world);
    with(&mut world, "ANTHROPIC_API_KEY", "sk-secret-value");
    let loaded = load(&world, flags()).unwrap();
    let spec = &loaded.spec;
    assert_eq!(agent(&loaded).program, [program.as_path().into()]);
    let mount = spec.mounts.iter().find(|mount| mount.source.as_path() == program).unwrap();
    assert_eq!((mount.target.as_path(), mount.mode), (program.as_path(), MountMode::Ro));
    assert_eq!(spec.network_allow, ["api.anthropic.com:443"]);
    assert_eq!(spec.env["CLAUDE_CONFIG_DIR"].to_string(), "/home/agent/.claude");
    let [secret] = spec.egress.secrets.as_slice() else { panic!("one secret") };
    assert_eq!(secret.env, "ANTHROPIC_API_KEY");
    assert_eq!(secret.place, SecretPlace::Header { name: "x-api-key".into() });
    assert_eq!(spec.workspace.as_ref().unwrap().mode, MountMode::Overlay);
    let lines = loaded.agent.join("\n");
    for part in ["claude-1.2", "api.anthropic.com:443", "ANTHROPIC_API_KEY is sent as x-api-key"] {
        assert!(lines.contains(part), "{lines}");
    }
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let everything = format!("{lines}{}", serde_json::to_string(spec).unwrap());
    assert!(!everything.contains("sk-secret-value"));
}

#[test]
fn a_command_has_no_preset() {
    let world = installed();
    let path = world.manifest("[agent]\nkind = 'claude'\nprompt = 'p'\n");
    world.trust(&path);
    let loaded = world.load(Flags::default()).unwrap();
    assert!(loaded.spec.agent.is_none() && loaded.spec.network_allow.is_empty());
    assert!(loaded.agent.is_empty());
    // Who names one for this run means it.
    let error = world.load(flags()).unwrap_err();
    assert!(error.to_string().contains("this run has a command"), "{error}");
}

#[test]
fn every_layer_wins_over_the_preset() {
    let mut world = installed();
    with(&mut world, "ANTHROPIC_API_KEY", "v");
    with(&mut world, "MY_KEY", "v");
    let path = world.manifest(
        "[agent]\nkind = 'claude'\nprompt = 'p'\n[network]\nallow = ['api.anthropic.com', 'pypi.org']\n\
         [sandbox]\nenv = { DISABLE_AUTOUPDATER = '0' }\n\
         [[secret]]\nenv = 'MY_KEY'\nhost = 'api.anthropic.com'\nbearer = true\n",
    );
    world.trust(&path);
    let loaded = load(&world, Flags::default()).unwrap();
    assert_eq!(loaded.spec.network_allow, ["api.anthropic.com", "pypi.org"]);
    assert_eq!(loaded.spec.env["DISABLE_AUTOUPDATER"].to_string(), "0");
    let names: Vec<&str> = loaded.spec.egress.secrets.iter().map(|one| one.env.as_str()).collect();
    assert_eq!(names, ["MY_KEY"]);
    // A variable from a flag keeps its value, which does not become a secret too.
    let given = flags().with("--env", "ANTHROPIC_API_KEY=mine");
    world.manifest("");
    let loaded = load(&world, given).unwrap();
    assert!(loaded.spec.egress.secrets.is_empty());
    assert!(loaded.warnings.iter().any(|warning| warning.contains("is passed into the sandbox")));
}

#[test]
fn a_secret_for_the_same_variable_at_a_gateway_is_kept() {
    let mut world = installed();
    with(&mut world, "ANTHROPIC_API_KEY", "v");
    let secrets = |world: &World| -> Vec<(String, String)> {
        let spec = load(world, flags()).unwrap().spec;
        spec.egress.secrets.into_iter().map(|one| (one.env, one.host.to_string())).collect()
    };
    let pair = |env: &str, host: &str| (env.to_owned(), host.to_owned());
    assert_eq!(secrets(&world), [pair("ANTHROPIC_API_KEY", "api.anthropic.com")], "control");
    for env in ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"] {
        let path = world.manifest(&format!(
            "[network]\nallow = ['gateway.example']\n\
             [[secret]]\nenv = '{env}'\nhost = 'gateway.example'\nheader = 'x-api-key'\n\
             from_env = 'ANTHROPIC_API_KEY'\n"
        ));
        world.trust(&path);
        assert_eq!(secrets(&world), [pair(env, "gateway.example")]);
    }
    // A secret of another program changes nothing about the agent's.
    let path = world.manifest(
        "[network]\nallow = ['gateway.example']\n\
         [[secret]]\nenv = 'OTHER'\nhost = 'gateway.example'\nfrom_env = 'X'\nbearer = true\n",
    );
    world.trust(&path);
    let both = [pair("OTHER", "gateway.example"), pair("ANTHROPIC_API_KEY", "api.anthropic.com")];
    assert_eq!(secrets(&world), both);
}

#[test]
fn no_network_overrides_the_preset_with_a_warning() {
    let mut world = installed();
    with(&mut world, "ANTHROPIC_API_KEY", "v");
    let loaded = load(&world, flags().with("--network", "none")).unwrap();
    assert!(loaded.spec.network_allow.is_empty() && loaded.spec.egress.secrets.is_empty());
    let warned = loaded.warnings.join("\n");
    assert!(warned.contains("cannot reach its service (api.anthropic.com:443)"), "{warned}");
}

#[test]
fn the_first_login_that_the_host_has_is_taken() {
    let mut world = installed();
    let none = load(&world, flags()).unwrap();
    assert!(none.spec.egress.secrets.is_empty());
    assert!(none.warnings.iter().any(|warning| warning.contains("no login found")));
    with(&mut world, "CLAUDE_CODE_OAUTH_TOKEN", "v");
    let loaded = load(&world, flags()).unwrap();
    assert_eq!(loaded.spec.egress.secrets[0].place, SecretPlace::Bearer);
    with(&mut world, "OPENAI_API_KEY", "v");
    let codex = load(&world, flags().with("--agent", "codex")).unwrap();
    assert_eq!(codex.spec.egress.secrets[0].env, "CODEX_API_KEY");
    assert!(codex.agent.join("\n").contains("OPENAI_API_KEY is sent as bearer token"));
}

#[test]
fn the_ceiling_holds_for_the_preset_too() {
    let mut world = installed();
    world.write("etc/policy.toml", "[network]\nallow = ['pypi.org']\n");
    let refused_text = refused(&world, flags());
    assert!(refused_text.contains("the preset of claude"), "{refused_text}");
    world.write("etc/policy.toml", "mounts = ['/srv']\n");
    install(&mut world);
    let workspace = flags().with("--workspace", "none");
    assert!(refused(&world, workspace.clone()).contains("sandbox.mounts[0]"));
    world.write("etc/policy.toml", "");
    load(&world, workspace).unwrap();
}

#[test]
fn a_prompt_comes_from_a_file_or_a_flag() {
    let world = installed();
    world.write("user/project/PROMPT.md", "from the file\n");
    let path = world.manifest("[agent]\nkind = 'claude'\nprompt_file = 'PROMPT.md'\n");
    world.trust(&path);
    assert_eq!(agent(&load(&world, Flags::default()).unwrap()).prompt, "from the file\n");
    let flag = Flags::default().with("--prompt", "from the flag");
    assert_eq!(agent(&load(&world, flag).unwrap()).prompt, "from the flag");
    // What a run changed in the file is not what was trusted.
    world.write("user/project/PROMPT.md", "from a run\n");
    assert!(refused(&world, Flags::default()).contains("has changed since it was trusted"));
    let other = world.write("user/other.md", "another\n");
    world.manifest("");
    let flag =
        Flags::default().with("--agent", "claude").with("--prompt-file", other.into_os_string());
    assert_eq!(agent(&load(&world, flag.clone()).unwrap()).prompt, "another\n");
    fs::write(world.user().join("other.md"), [0xff]).unwrap();
    assert!(refused(&world, flag.clone()).contains("is not valid UTF-8"));
    fs::write(world.user().join("other.md"), vec![b'x'; (1 << 20) + 1]).unwrap();
    assert!(refused(&world, flag).contains("is larger than"));
    assert!(
        refused(&world, Flags::default().with("--agent", "codex"))
            .contains("the agent has no prompt")
    );
}

/// A manifest of the kind `command` widens nothing, so it is used without trust.
#[test]
fn no_link_leads_a_manifests_prompt_to_another_file() {
    let world = installed();
    world.write("user/private/key.md", "private\n");
    world.write("user/project/real/key.md", "fine\n");
    let manifest = |file: &str| {
        world.manifest(&format!(
            "[agent]\nkind = 'command'\ncommand = ['cat']\nprompt_file = '{file}'\n"
        ))
    };
    manifest("real/key.md");
    let loaded = load(&world, Flags::default()).unwrap();
    assert_eq!(
        (agent(&loaded).kind, agent(&loaded).prompt.as_str()),
        (AgentKind::Command, "fine\n")
    );
    symlink(world.user().join("private"), world.project().join("notes")).unwrap();
    manifest("notes/key.md");
    assert!(refused(&world, Flags::default()).contains("symbolic link"));
    symlink(world.user().join("private/key.md"), world.project().join("linked.md")).unwrap();
    manifest("linked.md");
    assert!(refused(&world, Flags::default()).contains("symbolic link"));
}

#[test]
fn a_program_can_be_named() {
    let mut world = installed();
    let program = install(&mut world);
    let set = |value: &str| flags().with("-c", format!("agent.program='{value}'"));
    let image = load(&world, set("image")).unwrap();
    assert_eq!(agent(&image).program, ["claude".into()]);
    assert!(image.spec.mounts.is_empty());
    let named = load(&world, set("~/apps/claude-1.2")).unwrap();
    assert_eq!(agent(&named).program, [program.as_path().into()]);
    assert!(refused(&world, set("~/none")).starts_with("agent.program: "));
    let path =
        world.manifest("[agent]\nkind = 'command'\ncommand = ['x']\nprogram = '/etc/shadow'\n");
    assert!(refused(&world, Flags::default()).contains("agent.program: lets the run read"));
    world.trust(&path);
}

#[test]
fn login_files_need_a_waiver_and_the_files() {
    let world = installed();
    let files = flags().with("-c", "agent.auth='files'");
    let text = refused(&world, files.clone());
    assert!(text.contains("--waive env.clean=REASON"), "{text}");
    let waived = files.with("--waive", "env.clean=my own machine");
    assert!(refused(&world, waived.clone()).contains("log in on the host first"));
    world.write("user/.claude/.credentials.json", "{}");
    let loaded = load(&world, waived).unwrap();
    assert!(loaded.spec.egress.secrets.is_empty());
    assert!(loaded.agent.join("\n").contains("a copy of ~/.claude/.credentials.json"));
}

#[test]
fn a_budget_that_cannot_be_enforced_is_reported() {
    let world = installed();
    let limits = |kind: &str| {
        flags().with("--agent", kind).with("--max-cost-usd", "5").with("--max-tokens", "1000")
    };
    let warned = |kind| load(&world, limits(kind)).unwrap().warnings.join("\n");
    assert!(!warned("claude").contains("cannot stop it"));
    let codex = warned("codex");
    assert!(codex.contains("max_cost_usd cannot stop it"), "{codex}");
    assert!(codex.contains("is checked between iterations"), "{codex}");
}

#[test]
fn turns_of_a_command_cannot_be_limited_and_that_is_reported() {
    let world = installed();
    let warned = |kind: &str, table: &str, key: &str| {
        let command = if kind == "command" { "command = ['x']" } else { "prompt = 'p'" };
        let path =
            world.manifest(&format!("[agent]\nkind = '{kind}'\n{command}\n{table}\n{key} = 3\n"));
        world.trust(&path);
        load(&world, Flags::default()).unwrap().warnings.join("\n")
    };
    for table in ["", "[loop]"] {
        let text = warned("command", table, "max_turns");
        assert!(text.contains("max_turns cannot stop it"), "{text}");
        assert!(!warned("codex", table, "max_turns").contains("max_turns"));
    }
    assert!(!warned("command", "[loop]", "max_iterations").contains("max_turns"));
}

fn executable(world: &World, path: &str, content: &str) -> PathBuf {
    let path = world.write(path, content);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Marks a tree as writable by an earlier run.
fn written(world: &World, tree: &Path) {
    let mut list = tree.to_str().unwrap().to_owned();
    list.push('\0');
    fs::write(world.home.path().join("writable-trees"), list).unwrap();
}

#[test]
fn a_program_that_a_run_could_have_planted_is_not_taken() {
    let mut world = installed();
    let key = executable(&world, "user/private/key", "secret");
    let planted = format!("#!{}\n", key.display());
    let planted = executable(&world, "user/project/node_modules/.bin/claude", &planted);
    let bin = planted.parent().unwrap().to_owned();
    with(&mut world, "PATH", bin.to_str().unwrap());
    let text = refused(&world, flags());
    assert!(text.contains("claude is not on PATH (searched in "), "{text}");
    assert!(text.contains("; skipped: "), "{text}");
    assert!(text.contains(planted.to_str().unwrap()), "{text}");
    // An image may have the program.
    for setting in ["sandbox.image='some'", "sandbox.fallback=['docker']"] {
        let image = flags().with("-c", setting);
        assert_eq!(agent(&load(&world, image).unwrap()).program, ["claude".into()], "{setting}");
    }
    let image = flags().with("-c", "agent.program='image'");
    let loaded = load(&world, image).unwrap();
    assert_eq!(agent(&loaded).program, ["claude".into()]);
    assert!(loaded.spec.mounts.is_empty() && loaded.spec.tools.is_empty());
    let named = format!("agent.program='{}'", planted.display());
    let refused_text = refused(&world, flags().with("-c", named));
    assert!(refused_text.contains("which a run can write"), "{refused_text}");
    // The next candidate is used, until a run could have written that too.
    let program = install(&mut world);
    let path = format!("{}:{}", bin.display(), world.user().join("bin").display());
    with(&mut world, "PATH", &path);
    assert_eq!(agent(&load(&world, flags()).unwrap()).program, [program.as_path().into()]);
    written(&world, program.parent().unwrap());
    let text = refused(&world, flags());
    assert!(text.contains("which a run can write"), "{text}");
}

#[test]
fn a_prompt_that_a_run_could_have_changed_is_not_used() {
    let world = installed();
    let prompt = world.write("user/project/PROMPT.md", "do it\n");
    let path = world.manifest("[agent]\nkind = 'claude'\nprompt_file = 'PROMPT.md'\n");
    let load_named = || {
        let mut invocation = world.invocation(Flags::default());
        invocation.command = MainCommand::Agent;
        invocation.source = ManifestSource::File(path.clone());
        config::load(&invocation, &world.home)
    };
    assert!(load_named().is_ok(), "control: no run could write there");
    let by_flag = || {
        let flags = flags().without("--prompt").with("--prompt-file", &prompt);
        let mut invocation = world.invocation(flags);
        invocation.command = MainCommand::Agent;
        invocation.source = ManifestSource::None;
        config::load(&invocation, &world.home)
    };
    assert!(by_flag().is_ok(), "control");
    written(&world, &world.project());
    assert!(matches!(load_named(), Err(ConfigError::Untrusted { .. })));
    assert!(matches!(by_flag(), Err(ConfigError::UntrustedFile { .. })));
    // What was trusted with its content is what was looked at.
    world.trust(&path);
    assert!(load_named().is_ok());
    let examined = config::trust::examine_file(&prompt, &world.home).unwrap();
    config::trust::trust(&examined, &world.home).unwrap();
    assert!(by_flag().is_ok());
    fs::write(&prompt, "do something else\n").unwrap();
    assert!(matches!(load_named(), Err(ConfigError::Untrusted { .. })));
    assert!(matches!(by_flag(), Err(ConfigError::UntrustedFile { .. })));
}

#[test]
fn a_resolved_run_is_checked_against_the_current_ceiling() {
    let world = installed();
    let spec = load(&world, flags()).unwrap().spec;
    let system = world.invocation(Flags::default()).system;
    config::check_ceiling(&system, &spec).unwrap();
    world.write("etc/policy.toml", "[network]\nallow = ['pypi.org']\n");
    let refused = config::check_ceiling(&system, &spec).unwrap_err().to_string();
    assert!(refused.contains("network.allow") && refused.contains("policy.toml"), "{refused}");
    world.write("etc/policy.toml", "[network]\nallow = ['api.anthropic.com']\n");
    config::check_ceiling(&system, &spec).unwrap();
    world.write("etc/policy.toml", "no ceiling");
    assert!(config::check_ceiling(&system, &spec).is_err(), "what cannot be read is no leave");
}
