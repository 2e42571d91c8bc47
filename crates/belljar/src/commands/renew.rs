//! `belljar renew`: gives a kept sandbox another time to live.

use belljar::Client;
use belljar::spec::HumanDuration;
use serde_json::json;

use super::{CommandResult, exit_code_json, find_live, in_runtime, open_home, time_format};
use crate::cli::{RenewArgs, Ttl};
use crate::report;

pub(crate) fn run(args: &RenewArgs) -> i32 {
    exit_code_json(act(args), args.json)
}

fn act(args: &RenewArgs) -> CommandResult {
    let home = open_home()?;
    let run = find_live(&home, &args.run)?.id;
    let ttl = match args.ttl {
        Ttl::Unlimited => None,
        Ttl::For(span) => Some(HumanDuration::as_duration(span)),
    };
    in_runtime(async {
        let client = Client::connect(home.path(), &run).await?;
        let left = client.renew(ttl).await?.ttl_ms;
        match (args.json, left) {
            (true, _) => report::json(&json!({ "id": run, "ttl_ms": left }))?,
            (false, Some(left)) => {
                report::eprintln(&format!("{run} ends in {}", time_format::duration(left)));
            }
            (false, None) => report::eprintln(&format!("{run} stays until it is stopped")),
        }
        Ok(0)
    })
}
