//! A manifest that is printed reads back equal, and no input makes the reader panic.

use std::collections::BTreeMap;

use belljar_spec::manifest::*;
use belljar_spec::mount_arg::TmpfsArg;
use belljar_spec::{
    BackendChoice, BackendName, CeilingFile, Clause, Cpus, GitIdentity, HumanDuration, MountMode,
    OsText, Size, User, layers,
};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

fn text() -> impl Strategy<Value = String> + Clone {
    "[^\u{0}]{0,10}"
}

fn word() -> impl Strategy<Value = String> + Clone {
    "[a-zA-Z_é.\"'-]{1,8}"
}

fn os_text() -> impl Strategy<Value = OsText> + Clone {
    vec(1_u8.., 1..12).prop_map(OsText::from_bytes)
}

fn host_path() -> impl Strategy<Value = HostPath> + Clone {
    os_text().prop_map(HostPath)
}

fn words() -> impl Strategy<Value = Vec<String>> + Clone {
    vec(text(), 0..3)
}

fn ports() -> impl Strategy<Value = Vec<PublishSetting>> + Clone {
    vec((1_u16.., 1_u16..), 0..3).prop_map(|ports| {
        let parse = |(host, port)| PublishSetting::parse(&format!("{host}:{port}")).unwrap();
        ports.into_iter().map(parse).collect()
    })
}

fn command() -> impl Strategy<Value = Vec<String>> + Clone {
    vec(text(), 1..3)
}

fn added<T: std::fmt::Debug>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Added<T>>> {
    of(vec(item, 0..3).prop_map(Added))
}

fn limit<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Limit<T>>> {
    of(prop_oneof![value.prop_map(Limit::At), Just(Limit::None)])
}

fn span() -> impl Strategy<Value = HumanDuration> + Clone {
    (1_u64..).prop_map(HumanDuration::from_millis)
}

fn usd() -> impl Strategy<Value = Usd> {
    (0.0..1.0e9).prop_map(Usd)
}

fn variables() -> impl Strategy<Value = Variables> {
    let value = vec(1_u8.., 0..6).prop_map(OsText::from_bytes);
    btree_map("[A-Za-z_é.-]{1,6}", value, 0..3).prop_map(Variables)
}

prop_compose! {
    fn workspace()(
        path in of(host_path()),
        mode in of(select(WorkspaceMode::ALL)),
        target in of(os_text()),
    ) -> Workspace {
        Workspace { path, mode, target }
    }
}

prop_compose! {
    fn inside()(
        shell in of("/[a-z]{1,5}/[a-z]{1,5}".prop_map(ShellPath)),
        git_identity in of(prop_oneof![
            Just(GitIdentitySetting::Host),
            Just(GitIdentitySetting::None),
            ("[a-zé\"\\\\]{1,9}", "[a-z@.]{1,9}").prop_map(|(name, email)| GitIdentitySetting::Named(
                GitIdentity::new(Some(&name), Some(&email)).unwrap()
            )),
        ]),
    ) -> Sandbox {
        Sandbox { shell, git_identity, ..Sandbox::default() }
    }
}

prop_compose! {
    fn boundary()(
        backend in of(select(BackendChoice::ALL)),
        fallback in of(vec(select(BackendName::ALL), 0..3)),
        workspace in workspace().boxed(),
        rootfs in of(prop_oneof![
            Just(RootfsSetting::Host),
            host_path().prop_map(|path| RootfsSetting::from(path.0)),
        ]),
        image in of(text()),
        pull in of(select(Pull::ALL)),
        oci_runtime in of(text()),
        user in of((1..u32::MAX, 1..u32::MAX).prop_map(|(uid, gid)| User { uid, gid })),
        workdir in of(os_text()),
        name in of("[a-z0-9][a-z0-9_.-]{0,8}".prop_map(|name| name.parse().unwrap())),
        labels in of(btree_map(text(), text(), 0..3)),
        inside in inside().boxed(),
    ) -> Sandbox {
        Sandbox {
            backend, fallback, workspace, rootfs, image, pull, oci_runtime, user, workdir, name, labels,
            ..inside
        }
    }
}

prop_compose! {
    fn sandbox()(
        boundary in boundary().boxed(),
        tools in added(host_path()),
        mounts in added((host_path(), os_text(), of(select(MountMode::ALL)))
            .prop_map(|(source, target, mode)| MountEntry { source, target, mode })),
        tmpfs in added((os_text(), 1_u64..)
            .prop_map(|(target, size)| TmpfsEntry(TmpfsArg { target, size: Size(size) }))),
        hide in added("[a-z.]{0,3}[a-z]".prop_map(|name| HiddenName(name.into()))),
        env in of(variables()),
        pass_env in added("[A-Z_]{1,6}".prop_map(VariableName)),
        env_file in added(host_path()),
        allow_source in added(host_path()),
    ) -> Sandbox {
        Sandbox { tools, mounts, tmpfs, hide, env, pass_env, env_file, allow_source, ..boundary }
    }
}

prop_compose! {
    fn budget()(
        bytes_out in limit((1_u64..).prop_map(Size)),
        bytes_in in limit((1_u64..).prop_map(Size)),
        connections in limit(1_u32..),
        requests in limit(1_u32..),
    ) -> NetworkBudget {
        NetworkBudget { bytes_out, bytes_in, connections, requests }
    }
}

prop_compose! {
    fn network()(
        allow in of(words()), allow_private in of(words()), intercept in of(words()), publish in of(ports()),
        budget in budget(), budget_per_host in budget(),
    ) -> Network {
        Network { allow, allow_private, intercept, publish, budget, budget_per_host }
    }
}

prop_compose! {
    fn secret()(
        env in text(), host in text(), port in of(any::<u16>()),
        place in (0_u8..4, text()), source in of((0_u8..4, text(), host_path(), command())),
    ) -> Secret {
        let mut secret = Secret { env, host, port, ..Secret::default() };
        match place {
            (0, name) => secret.header = Some(name),
            (1, name) => secret.query = Some(name),
            (2, name) => secret.basic = Some(name),
            _ => secret.bearer = Some(true),
        }
        match source {
            Some((0, name, ..)) => secret.from_env = Some(name),
            Some((1, _, path, _)) => secret.file = Some(path),
            Some((2, _, _, command)) => secret.command = Some(command),
            Some((_, name, ..)) => secret.keyring = Some(name),
            None => {}
        }
        secret
    }
}

prop_compose! {
    fn limits()(
        memory in limit((1_u64..).prop_map(Size)),
        cpus in limit((1_u32..).prop_map(|millis| Cpus::from_millis(millis).unwrap())),
        pids in limit(1_u32..),
        time in limit(span()),
        idle in limit(span()),
        output in of(any::<u64>().prop_map(Size)),
        disk in limit((1_u64..).prop_map(Size)),
        stop_timeout in of(any::<u64>().prop_map(HumanDuration::from_millis)),
    ) -> LimitSettings {
        LimitSettings { memory, cpus, pids, time, idle, output, disk, stop_timeout }
    }
}

prop_compose! {
    fn policy()(
        require in added(select(Clause::ALL)),
        waive in of(btree_map(select(Clause::ALL), "[a-z]{1,9}", 0..3)),
    ) -> Policy {
        let named = |waive: BTreeMap<Clause, String>| {
            Waive(waive.into_iter().map(|(clause, why)| (clause.name().to_owned(), why)).collect())
        };
        Policy { require, waive: waive.map(named) }
    }
}

prop_compose! {
    fn agent()(
        kind in of(select(AgentKind::ALL)),
        command in of(command()),
        format in of(select(OutputFormat::ALL)),
        program in of(text().prop_map(OsText::from)),
        prompt in of(prop_oneof![text().prop_map(Ok), host_path().prop_map(Err)]),
        model in of(text()),
        args in of(words()),
        permissions in of(select(Permissions::ALL)),
        auth in of(select(Auth::ALL)),
        max_turns in of(any::<u32>()),
        max_cost_usd in of(usd()),
        max_tokens in of(0..i64::MAX as u64),
    ) -> Agent {
        let command = match kind {
            Some(AgentKind::Command) => command.or(Some(vec!["true".into()])),
            _ => command,
        };
        let (prompt, prompt_file) = match prompt {
            Some(Ok(prompt)) => (Some(prompt), None),
            Some(Err(file)) => (None, Some(file)),
            None => (None, None),
        };
        Agent {
            kind, command, format: format.filter(|_| kind.is_none_or(|kind| kind == AgentKind::Command)), program, prompt, prompt_file, model, args, permissions, auth, max_turns,
            max_cost_usd, max_tokens,
        }
    }
}

fn until() -> impl Strategy<Value = Until> {
    prop_oneof![
        "[a-z]{1,5}".prop_map(|file| Until { file: Some(file.into()), ..Until::default() }),
        (command(), of(span())).prop_map(|(command, timeout)| Until {
            command: Some(command),
            timeout,
            ..Until::default()
        }),
        text().prop_map(|says| Until { says: Some(says + "x"), ..Until::default() }),
    ]
}

prop_compose! {
    fn repeat()(
        until in of(until()),
        max_iterations in of(any::<u32>()),
        max_time in of(span()),
        max_cost_usd in of(usd()),
        max_turns in of(any::<u32>()),
        max_unchanged in of(1..=u32::MAX),
        max_failures in of(1..=u32::MAX),
        pause in of(span()),
        backoff in of(span()),
        max_tokens in of(0..i64::MAX as u64),
        session in of(prop_oneof![Just(SessionMode::Fresh), Just(SessionMode::Continue)]),
        checkpoints in of(1..u32::MAX),
    ) -> Loop {
        Loop {
            until, max_iterations, max_time, max_cost_usd, max_turns, max_unchanged, max_failures,
            pause, backoff, max_tokens, session, checkpoints,
        }
    }
}

prop_compose! {
    fn service()(
        command in command(),
        ready in of((of(any::<u16>()), of(command()), of(span()))
            .prop_map(|(tcp, command, within)| Ready { tcp, command, within })),
        env in of(variables()),
        workdir in of(os_text()),
    ) -> Service {
        Service { command, ready, env, workdir }
    }
}

fn rules() -> impl Strategy<Value = Option<Vec<CommandRule>>> {
    let rule = (text(), words(), words()).prop_map(|(rule, matches, no_match)| CommandRule {
        rule,
        matches,
        no_match,
    });
    of(vec(rule, 0..3))
}

prop_compose! {
    fn manifest()(
        sandbox in sandbox().boxed(),
        network in network().boxed(),
        secret in added(secret().boxed()),
        route in added((any::<u16>(), text(), of(text()))
            .prop_map(|(listen, to, secret)| Route { listen, to, secret })),
        limits in limits().boxed(),
        policy in policy().boxed(),
        agent in agent().boxed(),
        r#loop in repeat().boxed(),
        service in of(btree_map(word(), service().boxed(), 0..3)),
        setup in (of(words()), of(words()), of(span()))
            .prop_map(|(command, network, timeout)| Setup { command, network, timeout }),
        commands in (of(select(CommandMode::ALL)), rules(), rules())
            .prop_map(|(mode, deny, allow)| Commands { mode, deny, allow }),
        retention in (of(any::<u32>()), of(1..=u32::MAX))
            .prop_map(|(sandboxes, runs)| Retention { sandboxes, runs }),
    ) -> Manifest {
        Manifest {
            sandbox, network, secret, route, limits, policy, agent, r#loop, service, setup, commands,
            retention,
        }
    }
}

/// A piece of TOML that is nearly a manifest.
fn nearly() -> impl Strategy<Value = String> {
    let key = select(Manifest::keys());
    let value =
        select(vec!["1", "-1", "''", "'x'", "[]", "{}", "true", "1e9", "['a']", "[{}]", "nan"]);
    vec((key, value), 0..6)
        .prop_map(|lines| lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect())
}

proptest! {
    #[test]
    fn a_printed_manifest_reads_back_equal(manifest in manifest().boxed()) {
        let printed = manifest.to_toml();
        let read = Manifest::parse(printed.as_bytes(), &"m".into());
        prop_assert_eq!(read, Ok(manifest), "{}", printed);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = Manifest::parse(&bytes, &"m".into());
        let _ = CeilingFile::parse(&bytes, &"m".into());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]{}a-z=\"'.,\n #0-9]{0,60}") {
        let _ = Manifest::parse(text.as_bytes(), &"m".into());
        let _ = layers::from_assignment(&text);
        let _ = layers::from_variable("BELLJAR_SANDBOX_MOUNTS", &text);
    }

    /// What is accepted prints and reads back; what is refused says where.
    #[test]
    fn nearly_a_manifest_is_read_or_refused_with_a_place(text in nearly()) {
        match Manifest::parse(text.as_bytes(), &"m".into()) {
            Ok(manifest) => {
                let printed = manifest.to_toml();
                prop_assert_eq!(Manifest::parse(printed.as_bytes(), &"m".into()), Ok(manifest));
            }
            Err(error) => prop_assert!(error.to_string().starts_with("m:"), "{error}"),
        }
    }

    #[test]
    fn a_changed_manifest_never_panics(manifest in manifest().boxed(), at: prop::sample::Index, byte: u8) {
        let mut bytes = manifest.to_toml().into_bytes();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = Manifest::parse(&bytes, &"m".into());
    }
}
