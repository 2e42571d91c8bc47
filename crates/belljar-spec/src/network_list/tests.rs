use super::*;
use crate::egress::RouteScheme;

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// With a route on port 8080 to api.example:443, and a private host.
fn start(allow: &[&str]) -> (StartingNetwork, NetworkList) {
    let host = Host::parse(b"api.example").unwrap();
    let to = RouteTarget { scheme: RouteScheme::Https, host, port: 443, path: String::new() };
    let egress = EgressSpec {
        allow_private: texts(&["db.internal:5432"]),
        routes: vec![RouteSpec { listen: 8080, to, secret: None }],
        ..EgressSpec::default()
    };
    let list = NetworkList {
        allow: texts(allow),
        allow_private: egress.allow_private.clone(),
        routes: vec![8080],
        ..NetworkList::default()
    };
    (StartingNetwork { allow: texts(allow), egress }, list)
}

fn set(hosts: &[&str]) -> NetworkChange {
    NetworkChange { set: Some(texts(hosts)), ..NetworkChange::default() }
}

fn allow(hosts: &[&str]) -> NetworkChange {
    NetworkChange { allow: texts(hosts), ..NetworkChange::default() }
}

fn deny(hosts: &[&str]) -> NetworkChange {
    NetworkChange { deny: texts(hosts), ..NetworkChange::default() }
}

#[test]
fn a_new_list_replaces_everything_and_an_empty_one_closes_all() {
    let (start, list) = start(&["a.example", "b.example"]);
    assert!(list.changed(&set(&[]), &start).unwrap().is_empty());
    let one = list.changed(&set(&["A.example."]), &start).unwrap();
    assert_eq!((one.allow, one.allow_private, one.routes), (texts(&["a.example"]), vec![], vec![]));
    let named = list.changed(&set(&["api.example:443", "db.internal:5432"]), &start).unwrap();
    assert_eq!(named.allow, ["api.example:443"]);
    assert_eq!((named.allow_private, named.routes), (texts(&["db.internal:5432"]), vec![8080]));
}

#[test]
fn localhost_is_added_only_where_the_run_began_with_it() {
    let (mut start, list) = start(&["a.example"]);
    let refused = list.changed(&allow(&["localhost:5432"]), &start).unwrap_err().to_string();
    assert!(refused.contains("[[route]]"), "{refused}");
    assert!(list.changed(&set(&["localhost"]), &start).is_err());
    start.egress.allow_private.push("localhost:5432".to_owned());
    assert!(list.changed(&allow(&["localhost:5432"]), &start).is_ok());
}

#[test]
fn what_was_closed_is_opened_again_and_nothing_more() {
    let (start, list) = start(&["a.example"]);
    let closed = list.changed(&set(&[]), &start).unwrap();
    let open = closed.changed(&allow(&["db.internal:5432"]), &start).unwrap();
    assert_eq!((open.allow.len(), &open.allow_private), (0, &texts(&["db.internal:5432"])));
    assert!(open.routes.is_empty());
    // A private host that the run did not begin with is allowed at public addresses only.
    let other = closed.changed(&allow(&["other.internal:5432"]), &start).unwrap();
    assert_eq!((other.allow, other.allow_private.len()), (texts(&["other.internal:5432"]), 0));
    let wide = closed.changed(&allow(&["*.example", "*.internal:5432"]), &start).unwrap();
    assert_eq!((wide.routes, wide.allow_private.len()), (vec![8080], 0));
}

#[test]
fn a_host_is_removed_wherever_it_is_and_never_only_in_part() {
    let (start, list) = start(&["a.example:22", "GET a.example/docs", "*.b.example", "c.example"]);
    let gone = list.changed(&deny(&["a.example"]), &start).unwrap();
    assert_eq!(gone.allow, ["*.b.example", "c.example"]);
    let gone = list.changed(&deny(&["*.b.example", "db.internal", "api.example"]), &start).unwrap();
    assert_eq!((gone.allow_private.len(), gone.routes.len(), gone.allow.len()), (0, 0, 3));
    let still = |host: &str, rule: &str| {
        let (host, rule) = (host.to_owned(), rule.to_owned());
        Err(ChangeError::StillAllowed { host, rule })
    };
    let changed = |hosts: &[&str]| list.changed(&deny(hosts), &start);
    assert_eq!(changed(&["x.b.example"]), still("x.b.example", "*.b.example"));
    assert_eq!(changed(&["*.x.b.example"]), still("*.x.b.example", "*.b.example"));
    assert_eq!(changed(&["c.example:443"]), still("c.example:443", "c.example"));
    assert_eq!(changed(&["a.example:443"]), still("a.example:443", "GET a.example/docs"));
    assert_eq!(changed(&["c.example:8443", "other.example"]).as_ref(), Ok(&list));
    let rule = "GET c.example".to_owned();
    assert_eq!(changed(&["GET c.example"]), Err(ChangeError::NotAHost { rule }));
    assert!(matches!(changed(&["http://x"]), Err(ChangeError::BadRule { .. })));
}

#[test]
fn everything_is_allowed_only_where_it_was_from_the_start() {
    let (named, list) = start(&["a.example"]);
    assert_eq!(list.changed(&allow(&["*"]), &named), Err(ChangeError::Everything));
    assert_eq!(list.changed(&set(&["*:8443"]), &named), Err(ChangeError::Everything));
    let (all, list) = start(&["*"]);
    let narrowed = list.changed(&set(&["a.example"]), &all).unwrap();
    assert_eq!(narrowed.changed(&allow(&["*"]), &all).unwrap().allow, ["a.example", "*"]);
    let learning = NetworkList { reach: Reach::Learn, ..NetworkList::default() };
    assert_eq!(learning.changed(&deny(&["a.example"]), &all), Err(ChangeError::Learning));
    let listed = learning.changed(&set(&["a.example"]), &all).unwrap();
    assert_eq!((listed.reach, listed.allow), (Reach::Listed, texts(&["a.example"])));
}

#[test]
fn the_set_up_can_only_be_narrowed() {
    let (start, list) = start(&[]);
    let list = NetworkList { setup: Some(texts(&["pypi.example", "x.example:443"])), ..list };
    let setup = |change: NetworkChange| list.changed(&change, &start).unwrap().setup.unwrap();
    assert_eq!(setup(allow(&["new.example"])).len(), 2);
    assert_eq!(setup(set(&["pypi.example", "new.example"])), ["pypi.example"]);
    assert_eq!(setup(set(&["x.example"])), ["x.example:443"]);
    assert_eq!(setup(deny(&["x.example"])), ["pypi.example"]);
    assert!(setup(set(&[])).is_empty());
}

#[test]
fn additions_are_what_no_rule_before_allowed() {
    let (start, list) = start(&["*.example"]);
    let additions =
        |change: NetworkChange| list.changed(&change, &start).unwrap().additions_to(&list, &start);
    assert!(additions(set(&["a.example", "db.internal:5432"])).is_empty());
    assert!(additions(deny(&["*.example"])).is_empty());
    let new = additions(allow(&["a.example:22", "example"]));
    assert_eq!(new, Additions { allow: texts(&["a.example:22", "example"]), ..Default::default() });
    let closed = list.changed(&set(&[]), &start).unwrap();
    let open = closed.changed(&set(&["api.example", "db.internal:5432"]), &start).unwrap();
    let new = open.additions_to(&closed, &start);
    assert_eq!((new.allow, new.targets), (texts(&["api.example"]), texts(&["api.example:443"])));
    assert_eq!(new.allow_private, ["db.internal:5432"]);
}

#[test]
fn a_list_has_a_bound() {
    let (start, list) = start(&[]);
    let many: Vec<String> = (0..=MAX_RULES).map(|number| format!("h{number}.example")).collect();
    let change = NetworkChange { allow: many.clone(), ..NetworkChange::default() };
    assert_eq!(list.changed(&change, &start), Err(ChangeError::TooMany));
    let change = NetworkChange { allow: many[1..].to_vec(), ..NetworkChange::default() };
    assert!(list.changed(&change, &start).is_ok());
}
