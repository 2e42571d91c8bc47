//! An untrusted manifest is compared with what would hold without it: the built-in policy, the system's and the
//! user's own configuration. It undoes nothing of that.

use std::fs;

use belljar_testkit::{Behaviour, Done, FakeEngine, Lab, each_user};

/// One key: what the operator set, what would undo it, and what would not.
struct Key {
    /// As the refusal names it.
    name: &'static str,
    operator: &'static str,
    looser: &'static [&'static str],
    /// Equal or tighter.
    fine: &'static [&'static str],
}

/// Each value below the built-in one, so that only the operator's own can be what it is compared with.
const KEYS: &[Key] = &[
    Key {
        name: "sandbox.workspace.mode",
        operator: "[sandbox]\nworkspace = { mode = \"overlay\" }",
        looser: &["[sandbox]\nworkspace = { mode = \"rw\" }"],
        fine: &[
            "[sandbox]\nworkspace = { mode = \"overlay\" }",
            "[sandbox]\nworkspace = { mode = \"ro\" }",
            "[sandbox]\nworkspace = { mode = \"none\" }",
        ],
    },
    Key {
        name: "sandbox.workspace.mode",
        operator: "[sandbox]\nworkspace = { mode = \"ro\" }",
        looser: &[
            "[sandbox]\nworkspace = { mode = \"rw\" }",
            "[sandbox]\nworkspace = { mode = \"overlay\" }",
        ],
        fine: &["[sandbox]\nworkspace = { mode = \"ro\" }"],
    },
    Key {
        name: "sandbox.backend",
        operator: "[sandbox]\nbackend = \"docker\"",
        looser: &["[sandbox]\nbackend = \"jail\"", "[sandbox]\nbackend = \"auto\""],
        fine: &["[sandbox]\nbackend = \"docker\""],
    },
    Key {
        name: "sandbox.fallback",
        operator: "[sandbox]\nbackend = \"docker\"",
        looser: &["[sandbox]\nfallback = [\"jail\"]"],
        fine: &["[sandbox]\nfallback = []"],
    },
    Key {
        name: "sandbox.pull",
        operator: "[sandbox]\npull = \"never\"",
        looser: &["[sandbox]\npull = \"missing\"", "[sandbox]\npull = \"always\""],
        fine: &["[sandbox]\npull = \"never\""],
    },
    Key {
        name: "limits.memory",
        operator: "[limits]\nmemory = \"64m\"",
        looser: &["[limits]\nmemory = \"65m\"", "[limits]\nmemory = \"none\""],
        fine: &["[limits]\nmemory = \"64m\"", "[limits]\nmemory = \"32m\""],
    },
    Key {
        name: "limits.pids",
        operator: "[limits]\npids = 100",
        looser: &["[limits]\npids = 101", "[limits]\npids = \"none\""],
        fine: &["[limits]\npids = 100", "[limits]\npids = 50"],
    },
    Key {
        name: "limits.cpus",
        operator: "[limits]\ncpus = 0.5",
        looser: &["[limits]\ncpus = 0.6", "[limits]\ncpus = \"none\""],
        fine: &["[limits]\ncpus = 0.5", "[limits]\ncpus = 0.25"],
    },
    Key {
        name: "limits.time",
        operator: "[limits]\ntime = \"1h\"",
        looser: &["[limits]\ntime = \"61m\"", "[limits]\ntime = \"none\""],
        fine: &["[limits]\ntime = \"60m\"", "[limits]\ntime = \"1m\""],
    },
    Key {
        name: "limits.idle",
        operator: "[limits]\nidle = \"1m\"",
        looser: &["[limits]\nidle = \"2m\"", "[limits]\nidle = \"none\""],
        fine: &["[limits]\nidle = \"60s\"", "[limits]\nidle = \"30s\""],
    },
    Key {
        name: "limits.disk",
        operator: "[limits]\ndisk = \"1g\"",
        looser: &["[limits]\ndisk = \"2g\"", "[limits]\ndisk = \"none\""],
        fine: &["[limits]\ndisk = \"1g\"", "[limits]\ndisk = \"1m\""],
    },
    Key {
        name: "limits.output",
        operator: "[limits]\noutput = \"1m\"",
        looser: &["[limits]\noutput = \"2m\""],
        fine: &["[limits]\noutput = \"1m\"", "[limits]\noutput = \"512k\""],
    },
    Key {
        name: "limits.stop_timeout",
        operator: "[limits]\nstop_timeout = \"1s\"",
        looser: &["[limits]\nstop_timeout = \"2s\""],
        fine: &["[limits]\nstop_timeout = \"1s\"", "[limits]\nstop_timeout = \"500ms\""],
    },
    Key {
        name: "commands.mode",
        operator: "[commands]\nmode = \"strict\"",
        looser: &["[commands]\nmode = \"warn\"", "[commands]\nmode = \"off\""],
        fine: &["[commands]\nmode = \"strict\""],
    },
    Key {
        name: "commands.deny",
        operator: "[commands]\ndeny = [\"curl\"]",
        looser: &["[commands]\ndeny = []"],
        fine: &["[commands]\ndeny = [\"curl\"]", "[commands]\ndeny = [\"curl\", \"wget\"]"],
    },
    Key {
        name: "network.budget.bytes_out",
        operator: "[network]\nbudget = { bytes_out = \"1m\" }",
        looser: &[
            "[network]\nbudget = { bytes_out = \"2m\" }",
            "[network]\nbudget = { bytes_out = \"none\" }",
        ],
        fine: &["[network]\nbudget = { bytes_out = \"1m\" }"],
    },
    Key {
        name: "agent.permissions",
        operator: "[agent]\npermissions = \"ask\"",
        looser: &["[agent]\npermissions = \"bypass\""],
        fine: &["[agent]\npermissions = \"ask\""],
    },
    Key {
        name: "loop.max_iterations",
        operator: "[loop]\nmax_iterations = 3",
        looser: &["[loop]\nmax_iterations = 4"],
        fine: &["[loop]\nmax_iterations = 3", "[loop]\nmax_iterations = 1"],
    },
    Key {
        name: "loop.max_cost_usd",
        operator: "[loop]\nmax_cost_usd = 1.0",
        looser: &["[loop]\nmax_cost_usd = 2.0"],
        fine: &["[loop]\nmax_cost_usd = 1.0", "[loop]\nmax_cost_usd = 0.5"],
    },
    // Against the built-in policy alone: it has an order too.
    Key {
        name: "limits.pids",
        operator: "",
        looser: &["[limits]\npids = 4096"],
        fine: &["[limits]\npids = 2048"],
    },
    Key {
        name: "commands.mode",
        operator: "",
        looser: &["[commands]\nmode = \"off\""],
        fine: &["[commands]\nmode = \"warn\"", "[commands]\nmode = \"strict\""],
    },
];

fn operator(lab: &Lab, text: &str) {
    lab.make_file("person/.config/belljar/config.toml", format!("{text}\n"));
}

fn manifest(lab: &Lab, text: &str) {
    lab.make_file("work/belljar.toml", format!("{text}\n"));
}

/// Every layer, read and merged, without a run.
fn settings(lab: &Lab) -> Done {
    lab.belljar(["config", "show"]).done()
}

#[test]
fn nothing_of_the_operators_own_settings_is_undone_before_it_is_trusted() {
    each_user(|lab| {
        let mut undone = Vec::new();
        for key in KEYS {
            operator(lab, key.operator);
            for text in key.looser {
                manifest(lab, text);
                let done = settings(lab);
                let refused = done.code() == 125
                    && done.err().contains(key.name)
                    && done.err().contains("belljar trust");
                let shown = lab.belljar(["trust", "--show"]).done().err();
                if !refused || !shown.contains(key.name) {
                    undone.push(format!("{:?} by {text:?}: {}{shown}", key.operator, done.err()));
                }
            }
            // With the operator's word it holds.
            lab.belljar(["trust"]).done().expect(0);
            settings(lab).expect(0);
            lab.belljar(["trust", "--forget"]).done().expect(0);
        }
        assert!(undone.is_empty(), "{} undone:\n{}", undone.len(), undone.join("\n"));
    });
}

/// The controls: what is as tight as before, or tighter, needs nobody's word.
#[test]
fn what_is_equal_or_tighter_needs_no_trust() {
    each_user(|lab| {
        for key in KEYS {
            operator(lab, key.operator);
            for text in key.fine {
                manifest(lab, text);
                let done = settings(lab);
                assert_eq!(done.code(), 0, "{:?} with {text:?}: {done}", key.operator);
                let shown = lab.belljar(["trust", "--show"]).done();
                assert!(!shown.expect(0).err().contains("asks for:"), "{text:?}: {shown}");
            }
        }
    });
}

/// What a refusal prevents, seen in a run.
#[test]
fn an_overlay_of_the_operators_stays_one() {
    each_user(|lab| {
        operator(lab, "[sandbox]\nworkspace = { mode = \"overlay\" }");
        manifest(lab, "[sandbox]\nworkspace = { mode = \"rw\" }");
        let write = ["-q", "--", "sh", "-c", "echo x > new"];
        lab.run(write).done().expect(125).says(&["belljar trust"]);
        assert!(!lab.work().join("new").exists());
        lab.belljar(["trust"]).done().expect(0);
        lab.run(write).done().expect(0);
        assert!(lab.work().join("new").exists(), "trusted, it counts");
        // The control: without the key the operator's own mode holds.
        fs::remove_file(lab.work().join("new")).unwrap();
        manifest(lab, "[limits]\npids = 100");
        lab.run(write).done().expect(0);
        assert!(!lab.work().join("new").exists());
    });
}

/// An agent works on an overlay unless the operator says otherwise.
#[test]
fn an_agents_overlay_is_not_opened_by_the_manifest() {
    let agent = "[agent]\nkind = \"command\"\ncommand = [\"sh\", \"-c\", \"echo x > new\"]";
    each_user(|lab| {
        let (both, mode) = (
            format!("[sandbox]\nworkspace = {{ mode = \"rw\" }}\n{agent}"),
            "[sandbox]\nworkspace = { mode = \"rw\" }",
        );
        for (config, text) in [("", both.as_str()), (agent, mode)] {
            operator(lab, config);
            manifest(lab, text);
            let done = lab.run(["-q"]).done();
            done.expect(125).says(&["sandbox.workspace.mode", "belljar trust"]);
            assert!(!lab.work().join("new").exists(), "{text}");
        }
        // The controls: the agent alone, and the mode alone for a plain command, which has it anyway.
        operator(lab, "");
        manifest(lab, agent);
        lab.run(["-q"]).done().expect(0);
        assert!(!lab.work().join("new").exists());
        manifest(lab, mode);
        lab.run(["-q", "--", "sh", "-c", "echo x > new"]).done().expect(0);
        assert!(lab.work().join("new").exists());
    });
}

/// Lists to which every layer adds: no layer takes anything out of a lower one's.
#[test]
fn hidden_names_and_requirements_stay() {
    each_user(|lab| {
        lab.make_file("work/.env", "SECRET=1\n");
        operator(lab, "[sandbox]\nhide = [\".env\"]\n[policy]\nrequire = [\"proc.hidden\"]");
        manifest(
            lab,
            "[sandbox]\nhide = []\nworkspace = { mode = \"ro\" }\n[policy]\nrequire = []",
        );
        let done = lab.run(["-q", "--", "cat", ".env"]).done();
        assert!(!done.out().contains("SECRET"), "{done}");
        let shown = settings(lab);
        if shown.code() == 0 {
            shown.prints(&["proc.hidden", ".env"]);
        } else {
            shown.expect(125).says(&["belljar trust"]);
        }
    });
}

/// A control file that the operator did not allow is not allowed by the project.
#[test]
fn control_files_are_opened_by_nobody_but_the_operator() {
    each_user(|lab| {
        lab.make_file("work/.envrc", "before\n");
        operator(lab, "[sandbox]\nallow_control = [\".envrc\"]");
        manifest(lab, "[sandbox]\nallow_control = [\".mcp.json\"]");
        settings(lab).expect(125).says(&["sandbox.allow_control", ".mcp.json", "belljar trust"]);
        manifest(lab, "[limits]\npids = 100");
        lab.sh(&["-q"], "echo after > .envrc").expect(0);
        assert_eq!(fs::read_to_string(lab.work().join(".envrc")).unwrap(), "after\n");
    });
}

/// The name of an image can carry what a run knows to any registry.
#[test]
fn an_image_that_only_the_manifest_names_is_fetched_by_nobody() {
    each_user(|lab| {
        let engine = FakeEngine::start(lab.path("engine.sock"), Behaviour::HasNoImage);
        open_to_all(engine.socket());
        let sub = lab.make_directory("work/sub");
        let image = "registry.invalid:5000/leak-0123456789abcdef:1";
        let call = |words: &[&str]| {
            let words = ["-q", "--backend", "docker"].iter().chain(words).copied();
            let call = lab.run(words.chain(["--", "true"])).from(sub.clone());
            call.env("DOCKER_HOST", engine.address()).done()
        };
        let fetched = || {
            engine.requests().iter().any(|line| {
                line.contains("/images/create") || line.contains("leak-0123456789abcdef")
            })
        };
        lab.make_file("work/sub/belljar.toml", format!("[sandbox]\nimage = \"{image}\"\n"));
        let done = call(&[]);
        done.expect(125);
        let asked = engine.requests().iter().any(|line| line.contains("/images/create"));
        assert!(!asked, "{:?}", engine.requests());
        let refused = done.err().contains("belljar trust") || done.err().contains("never");
        assert!(refused, "{done}");
        lab.make_file(
            "work/sub/belljar.toml",
            format!("[sandbox]\nimage = \"{image}\"\npull = \"always\"\n"),
        );
        call(&[]).expect(125);
        let asked = engine.requests().iter().any(|line| line.contains("/images/create"));
        assert!(!asked, "{:?}", engine.requests());
        // The controls: the operator's own word, by trust and by a flag.
        lab.belljar(["trust"]).from(sub.clone()).done().expect(0);
        call(&[]).expect(125);
        assert!(fetched(), "{:?}", engine.requests());
        fs::remove_file(sub.join("belljar.toml")).unwrap();
        let before = engine.requests().len();
        call(&["--image", "registry.invalid:5000/named:1"]).expect(125);
        let new = &engine.requests()[before..];
        assert!(new.iter().any(|line| line.contains("/images/create")), "{new:?}");
    });
}

fn open_to_all(socket: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
}
