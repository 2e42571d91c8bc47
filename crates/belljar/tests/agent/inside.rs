//! What an agent and other programs find inside: the author of commits, the shell, and the gateway of a model.

use std::fs;

use belljar_testkit::{Actor, Input, Lab, ModelApi, TestEngine, Turn, each_engine, each_user};

const IDENTITY: &str = "[alias]\n\tx = \"!echo \\\"x\\\"\"\n[user]\n\tname = Ann Example\n\temail = ann@example.org\n\
                        [include]\n\tpath = other\n[core]\n\tpager = false\n";

/// A commit in a new repository below `/tmp`, and its author.
const COMMIT: &str = "cd /tmp && rm -rf r && git init -q r && cd r && $before git commit -q --allow-empty -m m && \
                      git log -1 --format='%an <%ae> %cn <%ce>'";

fn commit(before: &str) -> String {
    COMMIT.replace("$before", before)
}

#[test]
fn commits_have_the_name_of_the_hosts_user() {
    each_user(|lab| {
        let none = lab.sh(&[], &commit(""));
        assert_ne!(none.code(), 0, "control: nobody has a name: {none}");
        assert!(none.err().contains("identity unknown") || none.err().contains("tell me who"));
        let empty = lab.sh(&[], "test ! -e ~/.config && echo none").expect(0).out();
        assert_eq!(empty, "none\n");

        lab.make_file("person/.gitconfig", IDENTITY);
        let ann = "Ann Example <ann@example.org> Ann Example <ann@example.org>\n";
        assert_eq!(lab.sh(&[], &commit("")).expect(0).out(), ann);
        // That is all of the file that is there, and no variable overrides a repository.
        let seen = lab.sh(&[], "git config --list --global; env | grep ^GIT_ | grep -v SSL").out();
        assert_eq!(seen, "user.name=Ann Example\nuser.email=ann@example.org\n");
        let own = commit("git config user.name Repo && ");
        let repository = "Repo <ann@example.org> Repo <ann@example.org>\n";
        assert_eq!(lab.sh(&[], &own).expect(0).out(), repository);
        let global = commit("git config --global user.name Inside && ");
        let inside = "Inside <ann@example.org> Inside <ann@example.org>\n";
        assert_eq!(lab.sh(&[], &global).expect(0).out(), inside);
        assert_eq!(fs::read_to_string(lab.path("person/.gitconfig")).unwrap(), IDENTITY);

        let off = lab.sh(&["-c", "sandbox.git_identity=false"], &commit(""));
        assert_ne!(off.code(), 0, "{off}");
        let named = "sandbox.git_identity={ name = 'Bo', email = 'bo@example.org' }";
        let bo = "Bo <bo@example.org> Bo <bo@example.org>\n";
        assert_eq!(lab.sh(&["-c", named], &commit("")).expect(0).out(), bo);
        let dry = lab.run(["--dry-run", "--", "true"]).done();
        dry.expect(0).prints(&["git       commits by Ann Example <ann@example.org>"]);
        lab.assert_all_sound();
    });
}

#[test]
fn the_name_is_read_as_git_reads_it_and_from_the_users_files_alone() {
    let lab = Lab::me();
    let author = |lab: &Lab, file: Option<&str>| {
        let call = lab.run(["-q", "--", "sh", "-c", "cat ~/.config/git/config 2>/dev/null"]);
        let call = match file {
            Some(file) => call.env("GIT_CONFIG_GLOBAL", file),
            None => call,
        };
        call.done().out()
    };
    let written =
        |name: &str, email: &str| format!("[user]\n\tname = \"{name}\"\n\temail = \"{email}\"\n");
    // A repository's own file is not a user's, and is there inside anyway.
    lab.make_file("work/.git/config", "[user]\n\tname = Workspace\n\temail = w@example.org\n");
    assert_eq!(author(&lab, None), "");
    lab.make_file("person/.config/git/config", "[user]\nname = Lower\nemail = low@example.org\n");
    assert_eq!(author(&lab, None), written("Lower", "low@example.org"));
    lab.make_file("person/.gitconfig", "[user]\n\tname = \"Hi\u{1b}[2J \\\"gh\\\"\" # x\n");
    assert_eq!(author(&lab, None), written("Hi[2J \\\"gh\\\"", "low@example.org"));
    let only = lab.make_file("elsewhere", "[user]\nname = Only\nemail = o@example.org\n");
    assert_eq!(author(&lab, only.to_str()), written("Only", "o@example.org"));
    assert_eq!(author(&lab, Some("/dev/null")), "");
    assert_eq!(author(&lab, Some("")), "");
    // What is no file, or too large for one, is passed over.
    fs::remove_file(lab.path("person/.gitconfig")).unwrap();
    fs::create_dir(lab.path("person/.gitconfig")).unwrap();
    lab.make_file("person/.config/git/config", vec![b'x'; (1 << 20) + 1]);
    assert_eq!(author(&lab, None), "");
}

/// The variable, and the field of the user's account.
const SHELL: &str = "echo \"$SHELL\"; while IFS=: read -r name _ _ _ _ _ shell; do \
                     if test \"$name\" = agent; then echo \"$shell\"; fi; done < /etc/passwd";

#[test]
fn the_users_shell_is_bash_or_the_operators() {
    each_user(|lab| {
        let shell = |options: &[&str]| lab.sh(options, SHELL).expect(0).out();
        assert_eq!(shell(&[]), "/bin/bash\n/bin/bash\n");
        assert_eq!(shell(&["-c", "sandbox.shell='/bin/dash'"]), "/bin/dash\n/bin/dash\n");
        // A variable that the operator names is the operator's.
        assert_eq!(shell(&["-e", "SHELL=/x"]), "/x\n/bin/bash\n");
        let refused = lab.sh(&["-c", "sandbox.shell='/bin/no-such-shell'"], "true");
        refused.expect(125).says(&["sandbox.shell: there is no program /bin/no-such-shell inside"]);
        let tool = lab.make_program("apps/bin/mysh", "#!/bin/sh\nexec /bin/sh \"$@\"\n");
        let set = format!("sandbox.shell='{}'", tool.display());
        let unmounted = lab.sh(&["-c", &set], "true");
        unmounted.expect(125).says(&["there is no program"]);
        let apps = lab.path("apps");
        let mounted = format!("{0}:{0}", apps.display());
        let found = shell(&["-c", &set, "-v", &mounted]);
        assert_eq!(found, format!("{0}\n{0}\n", tool.display()));
        let root = "sandbox.shell='/etc/passwd'";
        lab.sh(&["-c", root], "true").expect(125).says(&["there is no program /etc/passwd"]);
    });
}

#[test]
fn an_images_shell_is_found_without_starting_it() {
    each_engine(|_, lab| {
        let has_bash = lab.sh(&[], "test -x /bin/bash").code() == 0;
        let expected = if has_bash { "/bin/bash\n/bin/bash\n" } else { "/bin/sh\n/bin/sh\n" };
        // The second time it is known.
        for _ in 0..2 {
            assert_eq!(lab.sh(&[], SHELL).expect(0).out(), expected);
        }
        let named = "sandbox.shell='/bin/sh'";
        assert_eq!(lab.sh(&["-c", named], SHELL).expect(0).out(), "/bin/sh\n/bin/sh\n");
        let refused = lab.sh(&["-c", "sandbox.shell='/bin/no-such-shell'"], "true");
        refused.expect(125).says(&["sandbox.shell: there is no program /bin/no-such-shell inside"]);
        lab.assert_nothing_lives(&lab.runs());
    });
}

/// The images of the other engines have no bash.
#[test]
fn bash_in_an_image_is_the_users_shell() {
    let Some(docker) = TestEngine::Docker.access() else { return }; // which says so
    let image = std::env::var(belljar::spec::env::TEST_IMAGE_DEBIAN).expect("no image of Debian");
    let lab = Lab::on(docker.with_image(image), Actor::Me);
    for _ in 0..2 {
        assert_eq!(lab.sh(&[], SHELL).expect(0).out(), "/bin/bash\n/bin/bash\n");
    }
    lab.run(["--keep", "-q", "--name", "k"]).done().expect(0);
    let input = lab.belljar(["shell", "k"]).input(Input::Bytes(b"echo \"$0\"\n".to_vec())).done();
    assert_eq!(input.expect(0).out(), "/bin/bash\n");
    lab.belljar(["stop", "-t", "0", "k"]).done().expect(0);
}

const KEY: &str = "sk-gateway-0123456789abcdef";
const GATEWAY: &str = "gateway.example";

/// How a manifest leads an agent to a gateway, and what the agent's program does with that.
struct Gateway {
    kind: &'static str,
    api: ModelApi,
    manifest: &'static str,
    /// Sends one request as the agent would, `$body`, and prints the answer to its standard error.
    request: &'static str,
    /// What it prints when it is done.
    result: &'static str,
}

const GATEWAYS: [Gateway; 3] = [
    Gateway {
        kind: "claude",
        api: ModelApi::Messages,
        manifest: "[sandbox]\nenv = { ANTHROPIC_BASE_URL = \"https://gateway.example\" }\n\
                   [[secret]]\nenv = \"ANTHROPIC_API_KEY\"\nhost = \"gateway.example\"\nheader = \"x-api-key\"\n",
        request: "curl -sS -H \"x-api-key: $ANTHROPIC_API_KEY\" -d \"$body\" \"$ANTHROPIC_BASE_URL/v1/messages\"",
        result: r#"{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":"fine"}"#,
    },
    Gateway {
        kind: "codex",
        api: ModelApi::Responses,
        manifest: "args = [\"-c\", \"openai_base_url=\\\"https://gateway.example/v1\\\"\"]\n\
                   [[secret]]\nenv = \"CODEX_API_KEY\"\nhost = \"gateway.example\"\nbearer = true\n",
        // As codex does, it takes the last value of a key.
        request: "for word; do case $word in openai_base_url=*) url=${word#*=\\\"}; url=${url%\\\"};; esac; done; \
                  curl -sS -H \"authorization: Bearer $CODEX_API_KEY\" -d \"$body\" \"$url/responses\"",
        result: r#"{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}"#,
    },
    Gateway {
        kind: "gemini",
        api: ModelApi::GenerateContent,
        manifest: "[sandbox]\nenv = { GOOGLE_GEMINI_BASE_URL = \"https://gateway.example\" }\n\
                   mounts = [{ source = \"gemini-settings.json\", target = \"/home/agent/.gemini/settings.json\" }]\n\
                   [[secret]]\nenv = \"GEMINI_API_KEY\"\nhost = \"gateway.example\"\nheader = \"x-goog-api-key\"\n",
        request: "grep -q selectedType ~/.gemini/settings.json && curl -sS -H \"x-goog-api-key: $GEMINI_API_KEY\" \
                  -d \"$body\" \"$GOOGLE_GEMINI_BASE_URL/v1beta/models/m:streamGenerateContent?alt=sse\"",
        result: r#"{"type":"result","status":"success"}"#,
    },
];

const BODY: &str = r#"{"tools": [{"name": "Bash", "functionDeclarations": [{"name": "run_shell_command"}]}], "input": []}"#;

/// The manifests are those of docs/agents.md.
#[test]
fn an_agent_talks_to_a_gateway_with_the_gateways_key() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agents.md"));
    let page = page.unwrap();
    for Gateway { kind, api, manifest, request, result } in GATEWAYS {
        let lab = Lab::me();
        let (world, model) = lab.world_with_model_at(GATEWAY, api, KEY);
        model.play([Turn::say("It is done.")]);
        let script =
            format!("#!/bin/sh\ncat > /dev/null\nbody='{BODY}'\n{request} >&2\necho '{result}'\n");
        let program = lab.make_program(format!("person/agents/bin/{kind}"), &script);
        let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
        lab.make_file(
            "work/gemini-settings.json",
            "{ \"security\": { \"auth\": { \"selectedType\": \"gemini-api-key\" } } }\n",
        );
        let network = "[network]\nallow = [\"gateway.example\"]\n";
        let (before, after) = manifest.split_at(manifest.find("[[secret]]").unwrap());
        let text = format!("[agent]\nkind = \"{kind}\"\n{before}{network}{after}");
        for line in text.lines() {
            assert!(page.contains(line), "docs/agents.md lacks {line}");
        }
        lab.make_file("work/belljar.toml", text);
        let variable = after.lines().find_map(|line| line.strip_prefix("env = ")).unwrap();
        let variable = variable.trim_matches('"');
        let words = ["--manifest", "belljar.toml", "--prompt", "Work.", "--json"];
        let done = world.run(words).env("PATH", &path).env(variable, KEY).done();
        assert_eq!(done.json()["exit"]["code"], 0, "{kind}: {done}");
        assert!(!done.out().contains(KEY), "{done}");
        let requests = model.requests();
        assert!(requests.len() == 1 && requests[0].has_key, "{kind}: {requests:?}");
        assert_eq!(model.left(), 0, "{kind}");
    }
}
