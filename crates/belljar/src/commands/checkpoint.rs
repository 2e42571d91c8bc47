//! `belljar checkpoint`: keeps the present state of a kept sandbox, for `fork`.

use belljar::Client;
use serde_json::json;

use super::{CommandResult, exit_code_json, find_live, in_runtime, open_home};
use crate::cli::CheckpointArgs;
use crate::report;

pub(crate) fn run(args: &CheckpointArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

fn act(args: &CheckpointArgs) -> CommandResult {
    let home = open_home()?;
    let run = find_live(&home, &args.run)?.id;
    in_runtime(async {
        let client = Client::connect(home.path(), &run).await?;
        let taken = client.checkpoint(args.note.clone()).await?;
        if args.json {
            report::json(&json!({
                "id": run, "checkpoint": taken.number, "changed": taken.changed,
            }))?;
        } else {
            report::out(&format!("{}\n", taken.number));
        }
        Ok(0)
    })
}
