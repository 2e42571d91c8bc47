//! What to do next: every hint that the command line prints, in one list.
//!
//! Each is followed by a test (`crates/belljar/tests/cli/hints.rs`): it provokes the hint, does what it says, and sees
//! it work. The test fails if a hint of the list has no such case.
//!
//! Not here: the fix of a clause, which the posture has (followed in `cli/fixes.rs`), and what helps where a backend is
//! not available, which the backend knows. Of the latter the flags for containers and `belljar setup` are followed; to
//! start an engine or to join its group is not for a test to do.

macro_rules! hints {
    ($($(#[$doc:meta])* $name:ident $({ $($field:ident),+ })? => $text:literal;)+) => {
        /// What to do next.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Hint {
            $($(#[$doc])* $name $({ $($field: String),+ })?,)+
        }

        impl Hint {
            /// The names of all hints.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)+
                }
            }
        }

        impl std::fmt::Display for Hint {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name $({ $($field),+ })? => write!(f, $text),)+
                }
            }
        }
    };
}

impl From<Hint> for String {
    fn from(hint: Hint) -> Self {
        hint.to_string()
    }
}

hints! {
    /// A program of the host that an install prefix brings in.
    UseTool { program, prefix } => "if the host has {program}, bring it in: --tool {prefix}";
    /// A program of the host without a prefix that can be mounted.
    UseVolume { program } => "the host has {program}; to bring it in: -v {program}:{program}";
    /// The same for a run that is alive: its mounts cannot change.
    RestartWithTool { program, prefix } => "if the host has {program}, start the run with --tool {prefix}";
    RestartWithVolume { program } => "the host has {program}; start the run with -v {program}:{program}";
    /// What is started looks like an image.
    UseImage { image, command } => "for a sandbox from that image: belljar run --image {image} {command}";
    /// Neither the sandbox nor the host has the program.
    Install { program } => "the host does not have it either: install {program}, or use an image that has it: --image IMAGE";
    /// `--image` with the backend that has no images.
    ImageNeedsSandbox => "for a sandbox from that image, leave out --backend host";
    /// A case of `prove` that does not exist.
    ListCases => "to list the cases: belljar prove --list";
    /// belljar was called in a run.
    InsideRun { run } => "already inside run {run}: a sandbox cannot start another; call belljar on the host";
    /// A clause that is not enforced.
    Waive { waivers } => "to start without it, give a reason: {waivers}";
    /// A backend without a boundary.
    WaiveAll => "to start without isolation, give a reason: --waive all=REASON";
    /// `run` without a command.
    GiveCommand => "belljar run COMMAND";
    /// The sandbox is not as planned, or could not be made.
    CheckHost => "belljar doctor says why, and what helps";
    /// A port of the host that is taken.
    FreePort { port } => "to let the host choose a free port: -p {port}; belljar port RUN prints it";
    /// A port of the host that only root may use.
    HighPort => "use a port above 1023";
    /// An address that the host does not have.
    OwnAddress => "use an address that this host has";
    /// `cp` without a run; `run` is the newest one, if there is one.
    CopyForm { run } => "belljar cp {run}:/workspace/file . (write a host path with a colon as ./a:b)";
    /// An agent's run that was lost.
    Resume { run } => "belljar resume {run}";
    /// An agent whose work would be in vain.
    StartAnyway => "to start it anyway: add --yes";
    /// A budget of a loop that was used up.
    Extend { flag } => "{flag} goes on";
    /// A loop that is done.
    OtherCheckpoint => "--from N goes back to an earlier checkpoint, and belljar fork begins anew from one";
    /// Control files that a run made in a tree of the host.
    Quarantine { run } => "to move them to the run's directory: belljar apply --quarantine {run}";
    /// `prove` of a build without the attack catalogue.
    DefaultBuild => "use a default build of belljar on Linux";
    /// Conflicts of `apply`.
    ApplyOthers => "apply other paths by name, or use the run's version with --theirs";
    /// A RUN that was left out.
    NewestRun { shown, command } => "the newest run is {shown}: belljar {command}";
    /// The same for a command that needs a live run, where there is none.
    NoLiveRun => "no run is live; start one: belljar run --keep --name NAME";
    /// `why`, for a run whose refused calls were not recorded.
    TraceDenied => "refused system calls were not recorded; to record them:\n  belljar run --trace-denied COMMAND";
    /// Of an image: what it contains is up to the image.
    InstallInImage { program } => "the image does not contain {program}; use another --image";
}

/// What docker calls something that belljar calls otherwise.
#[derive(Debug)]
pub struct DockerWord {
    /// A command, or a flag with its dashes.
    pub word: &'static str,
    pub hint: &'static str,
}

/// Commands of docker that belljar does not have.
pub const DOCKER_COMMANDS: &[DockerWord] = &[
    DockerWord { word: "kill", hint: "to end a run at once: belljar stop -t 0 RUN" },
    DockerWord { word: "top", hint: "to list its processes: belljar exec RUN ps -ef" },
    DockerWord { word: "stats", hint: "to see what a run has used: belljar show RUN" },
    DockerWord {
        word: "images",
        hint: "to list the images that the jail starts from: belljar image list; an engine's: docker images, podman images",
    },
    DockerWord {
        word: "rmi",
        hint: "to remove an image that the jail starts from: belljar image rm IMAGE; an engine's: docker rmi, podman rmi",
    },
    DockerWord { word: "load", hint: "to load an image: belljar image load FILE" },
    DockerWord {
        word: "save",
        hint: "to write an image to a file: belljar image export -o FILE IMAGE",
    },
    DockerWord { word: "build", hint: "to build an image: belljar image build" },
    DockerWord {
        word: "pull",
        hint: "to pull an image: belljar image pull IMAGE; when a run starts: belljar run --image IMAGE --pull always COMMAND",
    },
    DockerWord {
        word: "create",
        hint: "to start a sandbox for exec: belljar run --keep --name NAME",
    },
    DockerWord {
        word: "start",
        hint: "to start a new run: belljar run COMMAND; to continue an agent's run: belljar resume RUN",
    },
    DockerWord {
        word: "restart",
        hint: "to start a new run: belljar run COMMAND; to continue an agent's run: belljar resume RUN",
    },
    DockerWord { word: "info", hint: "to see what works on this machine: belljar doctor" },
    DockerWord { word: "system", hint: "to remove old runs: belljar prune" },
    DockerWord { word: "volume", hint: "to mount a directory: belljar run -v SRC:DST COMMAND" },
    DockerWord { word: "export", hint: "to copy files out of a sandbox: belljar cp RUN:/path ." },
];

const PRIVILEGES: &str = "a sandbox never gets privileges; without isolation: \
                          belljar run --backend host --waive all=REASON COMMAND";

/// Flags of `docker run` that belljar does not have.
pub const DOCKER_FLAGS: &[DockerWord] = &[
    DockerWord { word: "--privileged", hint: PRIVILEGES },
    DockerWord { word: "--cap-add", hint: PRIVILEGES },
    DockerWord { word: "--security-opt", hint: PRIVILEGES },
    DockerWord {
        word: "--read-only",
        hint: "the root is read-only; for the workspace too: belljar run --workspace .:ro COMMAND",
    },
    DockerWord {
        word: "--restart",
        hint: "to run an agent repeatedly: belljar run --max-iterations N",
    },
];

/// `exec -u`.
pub const EXEC_USER: &str = "every command in a sandbox runs as the same user, which is chosen when the run starts: \
                         belljar run --user UID:GID";
