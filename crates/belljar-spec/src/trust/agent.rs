//! Finds what a manifest lets an agent do, and the instructions that it gives one.

use super::{Finder, Purpose};
use crate::manifest::{Auth, Loop, Permissions};

impl Finder<'_> {
    pub(super) fn agent(&mut self) {
        let (agent, lower) = (&self.manifest.agent, &self.baseline.lower.agent);
        let is_account = |kind| Purpose::of_agent(Some(kind)) == Purpose::AccountAgent;
        if agent.kind.is_some_and(is_account) && agent.kind != lower.kind {
            let what = "lets the run use your account with that agent's service";
            self.add("agent.kind", what);
        }
        if let Some(program) = &agent.program
            && lower.program.as_ref() != Some(program)
        {
            self.add("agent.program", format!("lets the run read and execute {program}"));
        }
        if agent.auth == Some(Auth::Login) && lower.auth != agent.auth {
            self.add("agent.auth", "lets the run act with your login at the agent's service");
        }
        if agent.auth == Some(Auth::Files) && lower.auth != agent.auth {
            self.add("agent.auth", "copies your login with the agent's service into the run");
        }
        let freedom = |permissions: Permissions| match permissions {
            Permissions::Ask => 0,
            Permissions::AcceptEdits => 1,
            Permissions::Bypass => 2,
        };
        if let Some((wanted, lower)) = agent.permissions.zip(lower.permissions)
            && freedom(wanted) > freedom(lower)
        {
            self.add(
                "agent.permissions",
                format!("lets the agent do more unasked: {}", wanted.name()),
            );
        }
        let paths = agent.prompt_file.as_ref().zip(self.absolute.agent.prompt_file.as_ref());
        if let Some((path, absolute)) = paths
            && lower.prompt_file.as_ref() != Some(absolute)
        {
            match self.leads_into(path, absolute, self.baseline.directory) {
                Err(why) => {
                    self.add("agent.prompt_file", format!("lets the run read {}{why}", path.0));
                }
                Ok(()) => self.instructions("agent.prompt_file"),
            }
        }
        if agent.prompt.is_some() && agent.prompt != lower.prompt {
            self.instructions("agent.prompt");
        }
        if agent.args.is_some() && agent.args != lower.args {
            self.instructions("agent.args");
        }
        if agent.model.is_some() && agent.model != lower.model {
            self.instructions("agent.model");
        }
        self.repetition();
        self.agent_budgets();
    }

    /// Without a loop the user's agent runs once.
    fn repetition(&mut self) {
        let none = Loop::default();
        let (lower, higher) = (&self.baseline.lower.r#loop, &self.baseline.higher.r#loop);
        let is_new = self.manifest.r#loop != none && *lower == none && *higher == none;
        let sets_kind = self.manifest.agent.kind.is_some(); // that is shown already
        if is_new && self.baseline.purpose == Purpose::AccountAgent && !sets_kind {
            self.add("loop", "runs your agent again and again");
        }
    }

    /// Instructions of another author, given in the user's name.
    fn instructions(&mut self, key: &str) {
        let sets_kind = self.manifest.agent.kind.is_some(); // that is shown already
        if self.baseline.purpose == Purpose::AccountAgent && !sets_kind {
            self.add(key, "sets your agent's instructions");
        }
    }
}
