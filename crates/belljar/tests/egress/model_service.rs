//! The model service of the tests with real agents, at its own name in the test network: it gets the real key from the
//! proxy, plays its script, and refuses whoever has no key.

use belljar_testkit::{ModelApi, Turn, each_user};

const KEY: &str = "sk-real-0123456789abcdef";

#[test]
fn its_name_leads_to_it_and_the_proxy_inserts_the_key() {
    each_user(|lab| {
        for (api, target, header, secret, reply) in [
            (
                ModelApi::Messages,
                "/v1/messages",
                "x-api-key: $KEY",
                "header=x-api-key",
                "\"text\":\"It is done.\"",
            ),
            (
                ModelApi::Responses,
                "/v1/responses",
                "authorization: Bearer $KEY",
                "bearer=true",
                "response.completed",
            ),
            (
                ModelApi::GenerateContent,
                "/v1beta/models/m:streamGenerateContent?alt=sse",
                "x-goog-api-key: $KEY",
                "header=x-goog-api-key",
                "\"text\":\"It is done.\"",
            ),
        ] {
            let _ = std::fs::remove_dir_all(lab.path("world"));
            let _ = std::fs::remove_file(lab.path("bin/world"));
            let (world, model) = lab.world_with_model(api, KEY);
            model.play([Turn::say("It is done.")]);
            let host = api.host();
            let body = "{\"tools\": [{\"name\": \"Bash\", \"functionDeclarations\": \
                        [{\"name\": \"run_shell_command\"}]}], \"input\": []}";
            let script = format!("curl -sS -H \"{header}\" -d '{body}' 'https://{host}{target}'");
            let with = format!("env=KEY,host={host},{secret}");
            let words = ["--no-config", "--allow-host", host, "--secret", &with, "--"];
            let call = ["sh", "-c", &script];
            let done = world.run(words.iter().chain(&call)).env("KEY", KEY).done();
            assert!(done.expect(0).out().contains(reply), "{done}");
            assert!(!done.out().contains(KEY), "{done}");
            let requests = model.conversation();
            assert!(requests.len() == 1 && requests[0].has_key, "{requests:?}");
            assert_eq!(model.left(), 0);

            // Without a secret of the run the key that the client sends is not the real one.
            model.play([Turn::say("It is done.")]);
            let intercept = format!("network.intercept=[\"{host}\"]");
            let words = ["--no-config", "--allow-host", host, "-c", &intercept, "--"];
            let done = world.run(words.iter().chain(&call)).done();
            assert!(done.expect(0).out().contains("answers with 401"), "{done}");
            assert_eq!(model.left(), 1, "no turn was played");
        }
    });
}
