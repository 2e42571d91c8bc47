//! The list of rules. Order matters: the first rule that matches gives the reason.

use super::{Autorun, Class, Missing, StandIn};

/// One kind of file.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Names separated by `/`, at any depth; `*` is any part of a name, `**` any number of names.
    pub pattern: &'static str,
    pub class: Class,
    /// When it runs.
    pub why: &'static str,
    pub missing: Missing,
}

impl Rule {
    pub(super) fn autorun(&self) -> Autorun {
        Autorun { class: self.class, why: self.why }
    }
}

/// One thing in a git directory that decides what git does.
#[derive(Clone, Copy, Debug)]
pub struct GitEntry {
    pub name: &'static str,
    pub why: &'static str,
    pub is_directory: bool,
    /// What is mounted in its place where it is missing.
    pub stand_in: Option<StandIn>,
}

const HOOK: &str = "git runs it as a hook";
const GIT_CONFIG: &str = "git runs what its keys name";
const GIT_REMOTE: &str = "git takes addresses to push to and pull from out of it";
const GIT_POINTER: &str = "git takes its configuration from where it points";

/// In every git directory, wherever it is. The stand-in for a missing one looks to git as if it were missing,
/// inside and outside: `.` as the common directory is the git directory itself.
pub const GIT_DIRECTORY: &[GitEntry] = &[
    GitEntry {
        name: "hooks",
        why: HOOK,
        is_directory: true,
        stand_in: Some(StandIn::EmptyDirectory),
    },
    GitEntry {
        name: "config",
        why: GIT_CONFIG,
        is_directory: false,
        stand_in: Some(StandIn::File("")),
    },
    GitEntry {
        name: "config.worktree",
        why: GIT_CONFIG,
        is_directory: false,
        stand_in: Some(StandIn::File("")),
    },
    GitEntry {
        name: "commondir",
        why: GIT_POINTER,
        is_directory: false,
        stand_in: Some(StandIn::File(".\n")),
    },
    GitEntry { name: "gitdir", why: GIT_POINTER, is_directory: false, stand_in: None },
    GitEntry { name: "remotes", why: GIT_REMOTE, is_directory: true, stand_in: None },
    GitEntry { name: "branches", why: GIT_REMOTE, is_directory: true, stand_in: None },
];

/// Where package managers unpack and move thousands of files. People do not edit these directories: only git
/// directories are looked for.
pub const DEPENDENCIES: &[&str] =
    &["node_modules", "site-packages", ".venv", "venv", ".tox", "target", "__pycache__"];
/// Data of a git directory, which nothing executes.
pub const GIT_DATA: &[&str] = &["objects", "refs", "logs", "info", "lfs"];

const fn control(pattern: &'static str, why: &'static str) -> Rule {
    Rule { pattern, class: Class::Control, why, missing: Missing::Reported }
}

const fn covered(pattern: &'static str, why: &'static str) -> Rule {
    Rule { pattern, class: Class::Control, why, missing: Missing::Covered }
}

const fn project(pattern: &'static str, why: &'static str) -> Rule {
    Rule { pattern, class: Class::Project, why, missing: Missing::Reported }
}

const EDITOR: &str = "an editor runs it when the folder is opened";
const EDITOR_SETTINGS: &str = "an editor takes paths of programs from it";
const EDITOR_RUN: &str = "an editor runs it when asked to run or debug";
const AGENT_SERVERS: &str = "an agent starts the servers it names";
const AGENT_HOOKS: &str = "an agent runs its hooks and takes its permissions";
const SHELL: &str = "a shell runs it when it starts or ends";
const DIRENV: &str = "direnv runs it when a shell enters the folder";
const LOGIN: &str = "it runs when a user logs in";
const REPL: &str = "an interpreter runs it when it starts here";
const DEBUGGER: &str = "a debugger runs it when it starts";

const PACKAGE: &str = "its scripts run on install, build and test";
const BUILD: &str = "it runs when the project is built";
const TEST: &str = "it runs when the project is tested";
const TOOL: &str = "a tool of the project loads it as code";
const TOOL_CONFIG: &str = "it names programs that a tool of the project runs";
const CI: &str = "it runs in continuous integration";
const CONTAINER: &str = "it runs when the container is built or started";
const GIT_HOOKS: &str = "it runs as a git hook where the project's hooks are set up";
const GIT_TRACKED: &str = "git takes remotes, drivers and filters from it";
const INSTRUCTS: &str = "it instructs the next agent";
const REBASE: &str = "git runs it when the rebase is continued";

pub static RULES: &[Rule] = &[
    // git: the directory itself, those of worktrees, and those of submodules, which nest.
    control(".git", GIT_POINTER),
    control(".git/hooks/**", HOOK),
    control(".git/config", GIT_CONFIG),
    control(".git/config.worktree", GIT_CONFIG),
    control(".git/commondir", GIT_POINTER),
    control(".git/gitdir", GIT_POINTER),
    control(".git/remotes/**", GIT_REMOTE),
    control(".git/branches/**", GIT_REMOTE),
    control(".git/worktrees/*/hooks/**", HOOK),
    control(".git/worktrees/*/config", GIT_CONFIG),
    control(".git/worktrees/*/config.worktree", GIT_CONFIG),
    control(".git/worktrees/*/commondir", GIT_POINTER),
    control(".git/worktrees/*/gitdir", GIT_POINTER),
    control(".git/worktrees/*/remotes/**", GIT_REMOTE),
    control(".git/worktrees/*/branches/**", GIT_REMOTE),
    control(".git/modules/**/hooks/**", HOOK),
    control(".git/modules/**/config", GIT_CONFIG),
    control(".git/modules/**/config.worktree", GIT_CONFIG),
    control(".git/modules/**/commondir", GIT_POINTER),
    control(".git/modules/**/gitdir", GIT_POINTER),
    project(".git/**/git-rebase-todo", REBASE),
    project(".git/**/sequencer/todo", REBASE),
    control(".gitconfig", GIT_CONFIG),
    control(".config/git/config", GIT_CONFIG),
    control(".config/git/hooks/**", HOOK),
    control(".config/hg/hgrc", "Mercurial runs what its keys name"),
    control(".jj/repo/config.toml", "Jujutsu runs what its keys name"),
    // Other version control.
    control(".hg/hgrc", "Mercurial runs the hooks and extensions it names"),
    control(".hg/hgrc-not-shared", "Mercurial runs the hooks and extensions it names"),
    control(".hg/sharedpath", "Mercurial takes its configuration from where it points"),
    control(".hgrc", "Mercurial runs the hooks and extensions it names"),
    control(".jj/repo/config.toml", "Jujutsu runs the tools it names"),
    // Belljar.
    covered("belljar.toml", "it decides what the next run may do"),
    // Folders that a shell enters.
    covered(".envrc", DIRENV),
    control(".autoenv", "autoenv runs it when a shell enters the folder"),
    control(".mise.toml", "mise runs its hooks when a shell enters the folder"),
    control("mise.toml", "mise runs its hooks when a shell enters the folder"),
    control(".mise.local.toml", "mise runs its hooks when a shell enters the folder"),
    control("mise.local.toml", "mise runs its hooks when a shell enters the folder"),
    control(".mise/**", "mise runs its hooks when a shell enters the folder"),
    control(".config/mise.toml", "mise runs its hooks when a shell enters the folder"),
    control(".config/mise/**", "mise runs its hooks when a shell enters the folder"),
    // Editors.
    covered(".vscode/tasks.json", EDITOR),
    covered(".vscode/settings.json", EDITOR_SETTINGS),
    covered(".vscode/launch.json", EDITOR_RUN),
    covered(".vscode/mcp.json", AGENT_SERVERS),
    control("*.code-workspace", EDITOR),
    control(".idea/runConfigurations/**", EDITOR_RUN),
    control(".idea/externalTools.xml", EDITOR_RUN),
    control(".idea/watcherTasks.xml", EDITOR),
    control(".idea/workspace.xml", EDITOR_RUN),
    control(".run/*.run.xml", EDITOR_RUN),
    control(".zed/settings.json", EDITOR_SETTINGS),
    control(".zed/tasks.json", EDITOR_RUN),
    control(".fleet/run.json", EDITOR_RUN),
    control("*.sublime-project", EDITOR_RUN),
    control(".nvim.lua", EDITOR),
    control(".nvimrc", EDITOR),
    control(".exrc", EDITOR),
    control(".vimrc", EDITOR),
    control(".gvimrc", EDITOR),
    control(".vim/**", EDITOR),
    control(".config/nvim/**", EDITOR),
    control(".dir-locals.el", EDITOR),
    control(".dir-locals-2.el", EDITOR),
    control(".emacs", EDITOR),
    control(".emacs.d/**", EDITOR),
    control(".gdbinit", DEBUGGER),
    control(".lldbinit", DEBUGGER),
    // Agents.
    covered(".mcp.json", AGENT_SERVERS),
    covered(".claude/settings.json", AGENT_HOOKS),
    covered(".claude/settings.local.json", AGENT_HOOKS),
    control(".claude/settings*.json", AGENT_HOOKS),
    control(".claude/hooks/**", AGENT_HOOKS),
    control(".claude.json", AGENT_HOOKS),
    covered(".cursor/mcp.json", AGENT_SERVERS),
    control(".cursor/hooks.json", AGENT_HOOKS),
    covered(".gemini/settings.json", AGENT_HOOKS),
    covered(".codex/config.toml", AGENT_HOOKS),
    control(".codex/hooks.json", AGENT_HOOKS),
    control(".windsurf/mcp.json", AGENT_SERVERS),
    control(".roo/mcp.json", AGENT_SERVERS),
    control(".amazonq/mcp.json", AGENT_SERVERS),
    control(".junie/mcp/mcp.json", AGENT_SERVERS),
    control(".continue/**", AGENT_SERVERS),
    control(".aider.conf.yml", AGENT_HOOKS),
    control("opencode.json", AGENT_SERVERS),
    control("opencode.jsonc", AGENT_SERVERS),
    control(".opencode/**", AGENT_HOOKS),
    // Shells, and what starts with a login.
    control(".pdbrc", DEBUGGER),
    control(".Rprofile", REPL),
    control(".irbrc", REPL),
    control(".pryrc", REPL),
    control(".ghci", REPL),
    control(".iex.exs", REPL),
    control(".kiro/settings/mcp.json", AGENT_SERVERS),
    control(".qwen/settings.json", AGENT_HOOKS),
    covered(".bashrc", SHELL),
    covered(".bash_profile", SHELL),
    covered(".bash_login", SHELL),
    covered(".bash_logout", SHELL),
    covered(".profile", SHELL),
    covered(".zshrc", SHELL),
    covered(".zprofile", SHELL),
    covered(".zshenv", SHELL),
    covered(".zlogin", SHELL),
    covered(".zlogout", SHELL),
    covered(".inputrc", "a shell takes its key bindings from it"),
    control(".bash_aliases", SHELL),
    control(".kshrc", SHELL),
    control(".cshrc", SHELL),
    control(".tcshrc", SHELL),
    control(".login", SHELL),
    control(".logout", SHELL),
    control(".config/direnv/**", DIRENV),
    control(".direnvrc", DIRENV),
    control(".config/fish/**", SHELL),
    control(".config/nushell/**", SHELL),
    control(".pam_environment", LOGIN),
    control(".xprofile", LOGIN),
    control(".xinitrc", LOGIN),
    control(".xsession", LOGIN),
    control(".xsessionrc", LOGIN),
    control(".config/autostart/**", LOGIN),
    control(".config/systemd/user/**", LOGIN),
    control(".config/environment.d/**", LOGIN),
    control(".ssh/**", "ssh takes keys and commands from it"),
    control(".tmux.conf", "tmux runs it when it starts"),
    control(".screenrc", "screen runs it when it starts"),
    // Project files that also run.
    project("package.json", PACKAGE),
    project(".npmrc", TOOL_CONFIG),
    project(".yarnrc", TOOL_CONFIG),
    project(".yarnrc.yml", TOOL_CONFIG),
    project(".yarn/releases/**", TOOL),
    project(".yarn/plugins/**", TOOL),
    project(".pnpmfile.cjs", TOOL),
    project("bunfig.toml", TOOL_CONFIG),
    project("deno.json", PACKAGE),
    project("deno.jsonc", PACKAGE),
    project("*.config.js", TOOL),
    project("*.config.cjs", TOOL),
    project("*.config.mjs", TOOL),
    project("*.config.ts", TOOL),
    project("*.config.mts", TOOL),
    project("*.config.cts", TOOL),
    project(".eslintrc.js", TOOL),
    project(".eslintrc.cjs", TOOL),
    project(".prettierrc.js", TOOL),
    project(".prettierrc.cjs", TOOL),
    project(".prettierrc.mjs", TOOL),
    project(".babelrc.js", TOOL),
    project(".mocharc.js", TOOL),
    project(".mocharc.cjs", TOOL),
    project("gulpfile.*", BUILD),
    project("gruntfile.*", BUILD),
    project("turbo.json", BUILD),
    project("nx.json", BUILD),
    project("makefile", BUILD),
    project("gnumakefile", BUILD),
    project("bsdmakefile", BUILD),
    project("*.mk", BUILD),
    project("makefile.am", BUILD),
    project("makefile.in", BUILD),
    project("configure", BUILD),
    project("configure.ac", BUILD),
    project("autogen.sh", BUILD),
    project("cmakelists.txt", BUILD),
    project("*.cmake", BUILD),
    project("cmakepresets.json", BUILD),
    project("cmakeuserpresets.json", BUILD),
    project("meson.build", BUILD),
    project("build.ninja", BUILD),
    project("sconstruct", BUILD),
    project("sconscript", BUILD),
    project("wscript", BUILD),
    project("justfile", BUILD),
    project(".justfile", BUILD),
    project("taskfile.yml", BUILD),
    project("taskfile.yaml", BUILD),
    project("rakefile", BUILD),
    project("*.rake", BUILD),
    project("gemfile", BUILD),
    project("*.gemspec", BUILD),
    project("build.rs", BUILD),
    project("cargo.toml", BUILD),
    project(".cargo/config", TOOL_CONFIG),
    project(".cargo/config.toml", TOOL_CONFIG),
    project("rust-toolchain", TOOL_CONFIG),
    project("rust-toolchain.toml", TOOL_CONFIG),
    project(".config/nextest.toml", TEST),
    project("conftest.py", TEST),
    project("pytest.ini", TEST),
    project("tox.ini", TEST),
    project("noxfile.py", TEST),
    project("setup.py", BUILD),
    project("setup.cfg", BUILD),
    project("pyproject.toml", BUILD),
    project("sitecustomize.py", "Python runs it whenever it starts there"),
    project("usercustomize.py", "Python runs it whenever it starts there"),
    project("*.pth", "Python runs it whenever it starts there"),
    project("manage.py", BUILD),
    project("build.gradle", BUILD),
    project("build.gradle.kts", BUILD),
    project("settings.gradle", BUILD),
    project("settings.gradle.kts", BUILD),
    project("init.gradle", BUILD),
    project("gradle.properties", BUILD),
    project("gradlew", BUILD),
    project("gradlew.bat", BUILD),
    project("gradle/wrapper/**", BUILD),
    project("pom.xml", BUILD),
    project("mvnw", BUILD),
    project("mvnw.cmd", BUILD),
    project(".mvn/**", BUILD),
    project("build.xml", BUILD),
    project("build.sbt", BUILD),
    project("build.zig", BUILD),
    project("mix.exs", BUILD),
    project("rebar.config", BUILD),
    project("composer.json", PACKAGE),
    project("phpunit.xml", TEST),
    project("*.csproj", BUILD),
    project("*.fsproj", BUILD),
    project("*.vcxproj", BUILD),
    project("directory.build.props", BUILD),
    project("directory.build.targets", BUILD),
    project("package.swift", BUILD),
    project("podfile", BUILD),
    project("workspace.bazel", BUILD),
    project("module.bazel", BUILD),
    project("build.bazel", BUILD),
    project("*.bzl", BUILD),
    project(".bazelrc", TOOL_CONFIG),
    project("flake.nix", BUILD),
    project("default.nix", BUILD),
    project("shell.nix", BUILD),
    project("*.nix", BUILD),
    project("dockerfile", CONTAINER),
    project("dockerfile.*", CONTAINER),
    project("*.dockerfile", CONTAINER),
    project("containerfile", CONTAINER),
    project("docker-compose*.yml", CONTAINER),
    project("docker-compose*.yaml", CONTAINER),
    project("compose.yml", CONTAINER),
    project("compose.yaml", CONTAINER),
    project("compose.override.yml", CONTAINER),
    project("compose.override.yaml", CONTAINER),
    project("vagrantfile", CONTAINER),
    project("procfile", CONTAINER),
    project("tiltfile", CONTAINER),
    project("skaffold.yaml", CONTAINER),
    project(".devcontainer/**", CONTAINER),
    project(".devcontainer.json", CONTAINER),
    project(".github/workflows/**", CI),
    project(".github/actions/**", CI),
    project(".gitlab-ci.yml", CI),
    project(".gitlab/ci/**", CI),
    project(".circleci/**", CI),
    project(".buildkite/**", CI),
    project(".forgejo/workflows/**", CI),
    project(".gitea/workflows/**", CI),
    project(".woodpecker.yml", CI),
    project(".woodpecker/**", CI),
    project(".travis.yml", CI),
    project(".drone.yml", CI),
    project("jenkinsfile", CI),
    project("azure-pipelines.yml", CI),
    project("bitbucket-pipelines.yml", CI),
    project("appveyor.yml", CI),
    project("cloudbuild.yaml", CI),
    project(".husky/**", GIT_HOOKS),
    project(".githooks/**", GIT_HOOKS),
    project("lefthook.yml", GIT_HOOKS),
    project("lefthook-local.yml", GIT_HOOKS),
    project(".pre-commit-config.yaml", GIT_HOOKS),
    project(".pre-commit-hooks.yaml", GIT_HOOKS),
    project(".overcommit.yml", GIT_HOOKS),
    project(".lintstagedrc*", GIT_HOOKS),
    project(".gitmodules", GIT_TRACKED),
    project(".gitattributes", GIT_TRACKED),
    project(".lfsconfig", GIT_TRACKED),
    project(".tool-versions", TOOL_CONFIG),
    project("claude.md", INSTRUCTS),
    project("claude.local.md", INSTRUCTS),
    project("agents.md", INSTRUCTS),
    project("agents.override.md", INSTRUCTS),
    project("gemini.md", INSTRUCTS),
    project(".claude/**", INSTRUCTS),
    project(".cursor/**", INSTRUCTS),
    project(".cursorrules", INSTRUCTS),
    project(".windsurfrules", INSTRUCTS),
    project(".clinerules", INSTRUCTS),
    project(".clinerules/**", INSTRUCTS),
    project(".gemini/**", INSTRUCTS),
    project(".codex/**", INSTRUCTS),
    project(".github/copilot-instructions.md", INSTRUCTS),
];
