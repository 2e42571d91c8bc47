//! DNS responses for tests that act as a name server.

use std::net::IpAddr;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{RData, Record, RecordType};

/// The response to a query packet. `lookup` gets the name without its final dot and the queried record type, and
/// returns all addresses of the name; those of the other family are left out.
pub(crate) fn response(
    query: &[u8],
    lookup: impl FnOnce(&str, RecordType) -> Result<Vec<IpAddr>, ResponseCode>,
) -> Vec<u8> {
    let message = Message::from_vec(query).unwrap();
    let query = message.queries[0].clone();
    let mut response = Message::response(message.metadata.id, message.metadata.op_code);
    response.add_query(query.clone());
    let name = query.name().to_ascii().to_lowercase();
    match lookup(name.trim_end_matches('.'), query.query_type()) {
        Err(code) => response.metadata.response_code = code,
        Ok(addresses) => {
            for data in addresses.into_iter().map(RData::from) {
                if data.record_type() == query.query_type() {
                    response.add_answer(Record::from_rdata(query.name().clone(), 0, data));
                }
            }
        }
    }
    response.to_vec().unwrap()
}
