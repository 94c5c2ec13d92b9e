//! The connection manager's messages, as tshark reads them field by field.
//!
//! The messages have random bits, so that a field that lies elsewhere, or is shorter, shows.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cm::ServiceId;
use cm::wire::{Body, IpHeader, Message};
use harness::runner::Case;
use harness::setting::Setting;
use verbs_programs::hostile::frame::{Ends, frame};

use super::capture::{TSHARK, tshark};

/// Datagrams of each message.
const EACH: u64 = 20;
/// The messages that tshark takes apart, by attribute: REQ, REJ, REP, RTU, DREQ, DREP.
const DISSECTED: [u8; 6] = [0x10, 0x12, 0x13, 0x14, 0x15, 0x16];

/// The family.
pub fn cases() -> Vec<Case> {
    vec![Case::new("capture/tshark reads the connection manager's messages", &[TSHARK], messages)]
}

/// A field: tshark's name for it, and its value.
type Field = (&'static str, String);

fn number(name: &'static str, value: impl Into<u64>) -> Field {
    (name, value.into().to_string())
}

/// A GID as tshark shows it in packets over IPv4: its last four bytes.
fn gid(name: &'static str, value: Ipv6Addr) -> Field {
    (name, Ipv4Addr::from_bits(value.to_bits() as u32).to_string())
}

fn fields(message: &Message) -> Vec<Field> {
    let mut fields = vec![
        number("infiniband.mad.transactionid", message.transaction_id),
        number("infiniband.mad.attributeid", message.body.attribute().0),
        number("infiniband.mad.mgmtclass", 7_u8),
    ];
    fields.extend(match &message.body {
        Body::Req(req) => {
            let mut fields = req_fields(req);
            fields.extend(rdma_cm_fields(req));
            fields
        }
        Body::Rep(rep) => vec![
            number("infiniband.cm.rep", rep.local_comm_id),
            number("infiniband.cm.rep.remotecommid", rep.remote_comm_id),
            number("infiniband.cm.rep.localqkey", rep.local_qkey),
            number("infiniband.cm.rep.localqpn", rep.local_qpn),
            number("infiniband.cm.rep.localeecn", rep.local_eecn),
            number("infiniband.cm.rep.startpsn", rep.starting_psn),
            number("infiniband.cm.rep.respres", rep.responder_resources),
            number("infiniband.cm.rep.initdepth", rep.initiator_depth),
            number("infiniband.cm.rep.tgtackdelay", rep.target_ack_delay),
            number("infiniband.cm.rep.failoveracc", rep.failover_accepted),
            number("infiniband.cm.rep.e2eflowctrl", rep.end_to_end_flow_control),
            number("infiniband.cm.rep.rnrretrcount", rep.rnr_retry_count),
            number("infiniband.cm.rep.srq", rep.srq),
            number("infiniband.cm.rep.localcaguid", rep.local_ca_guid),
        ],
        Body::Rej(rej) => vec![
            number("infiniband.cm.rej.localcommid", rej.local_comm_id),
            number("infiniband.cm.rej.remotecommid", rej.remote_comm_id),
            number("infiniband.cm.rej.msgrej", rej.message.0),
            number("infiniband.cm.rej.rejinfolen", rej.info_length),
            number("infiniband.cm.rej.reason", rej.reason.0),
        ],
        Body::Rtu(rtu) => vec![
            number("infiniband.cm.rtu.localcommid", rtu.local_comm_id),
            number("infiniband.cm.rtu.remotecommid", rtu.remote_comm_id),
        ],
        Body::Dreq(dreq) => vec![
            number("infiniband.cm.dreq.localcommid", dreq.local_comm_id),
            number("infiniband.cm.dreq.remotecommid", dreq.remote_comm_id),
            number("infiniband.cm.req.remoteqpneecn", dreq.remote_qpn),
        ],
        Body::Drep(drep) => vec![
            number("infiniband.cm.drsp.localcommid", drep.local_comm_id),
            number("infiniband.cm.drsp.remotecommid", drep.remote_comm_id),
        ],
        _ => Vec::new(),
    });
    fields
}

fn req_fields(req: &cm::wire::Req) -> Vec<Field> {
    vec![
        number("infiniband.cm.req", req.local_comm_id),
        number("infiniband.cm.req.serviceid", req.service_id),
        number("infiniband.cm.req.localcaguid", req.local_ca_guid),
        number("infiniband.cm.req.localqkey", req.local_qkey),
        number("infiniband.cm.req.localqpn", req.local_qpn),
        number("infiniband.cm.req.responderres", req.responder_resources),
        number("infiniband.cm.req.localeecn", req.local_eecn),
        number("infiniband.cm.req.initdepth", req.initiator_depth),
        number("infiniband.cm.req.remoteeecn", req.remote_eecn),
        number("infiniband.cm.req.remoteresptout", req.remote_cm_response_timeout),
        number("infiniband.cm.req.transpsvctype", req.transport_service.0),
        number("infiniband.cm.req.e2eflowctrl", req.end_to_end_flow_control),
        number("infiniband.cm.req.startpsn", req.starting_psn),
        number("infiniband.cm.req.localresptout", req.local_cm_response_timeout),
        number("infiniband.cm.req.retrcount", req.retry_count),
        number("infiniband.cm.req.pkey", req.pkey),
        number("infiniband.cm.req.pppmtu", req.path_mtu),
        number("infiniband.cm.req.rdcexist", req.rdc_exists),
        number("infiniband.cm.req.rnrretrcount", req.rnr_retry_count),
        number("infiniband.cm.req.maxcmretr", req.max_cm_retries),
        number("infiniband.cm.req.srq", req.srq),
        number("infiniband.cm.req.ext_transport", req.extended_transport),
        number("infiniband.cm.req.prim_locallid", req.primary_local_lid),
        number("infiniband.cm.req.prim_remotelid", req.primary_remote_lid),
        gid("infiniband.cm.req.prim_localgid_ipv4", req.primary_local_gid),
        gid("infiniband.cm.req.prim_remotegid_ipv4", req.primary_remote_gid),
        // Not the flow label and the packet rate, of whose four bytes tshark 4.0 takes three and one.
        number("infiniband.cm.req.prim_tfcclass", req.primary_traffic_class),
        number("infiniband.cm.req.prim_hoplim", req.primary_hop_limit),
        number("infiniband.cm.req.prim_sl", req.primary_sl),
        number("infiniband.cm.req.prim_subnetlocal", req.primary_subnet_local),
        number("infiniband.cm.req.prim_localacktout", req.primary_local_ack_timeout),
    ]
}

/// The fields that RDMA CM puts into the service ID and the private data.
fn rdma_cm_fields(req: &cm::wire::Req) -> Vec<Field> {
    let Some((space, port)) = ServiceId(req.service_id).port() else { return Vec::new() };
    let Ok(header) = IpHeader::parse(&req.private_data) else { return Vec::new() };
    vec![
        number("infiniband.cm.req.serviceid.protocol", space as u16 & 0xff),
        number("infiniband.cm.req.serviceid.dport", port),
        number("infiniband.cm.req.ip_cm.majv", 0_u8),
        number("infiniband.cm.req.ip_cm.ipv", 4_u8),
        number("infiniband.cm.req.ip_cm.sport", header.source_port),
        ("infiniband.cm.req.ip_cm.sip4", header.source.to_string()),
        ("infiniband.cm.req.ip_cm.dip4", header.destination.to_string()),
    ]
}

/// A datagram of a message with random bits, every other REQ being RDMA CM's.
fn random(attribute: u8, seed: u64) -> [u8; 256] {
    let mut state = seed << 8 | u64::from(attribute);
    let mut bytes: [u8; 256] = std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (state >> 56) as u8
    });
    bytes[..8].copy_from_slice(&[1, 7, 2, 3, 0, 0, 0, 0]);
    bytes[16..24].copy_from_slice(&[0, attribute, 0, 0, 0, 0, 0, 0]);
    if attribute == DISSECTED[0] && seed % 2 == 0 {
        bytes[32..38].copy_from_slice(&[0, 0, 0, 0, 1, 6]);
        bytes[164..166].copy_from_slice(&[0, 0x40]);
    }
    bytes
}

/// A capture of frames, in the classic format: its header, and one for each frame.
fn capture(file: &Path, datagrams: &[[u8; 256]]) -> Result<()> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut bytes: Vec<u8> = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for datagram in datagrams {
        let macs = [1, 2].map(|last| [2, 0, 0, 0, 0, last]);
        let addresses = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        let frame = frame(datagram, Ends { macs, addresses })?;
        let length = u32::try_from(frame.len())?;
        let header: Vec<u8> = words(&[0, 0, length, length]);
        bytes.extend(header);
        bytes.extend(frame);
    }
    std::fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

/// A number in one of the notations of tshark, or the text itself.
fn plain(text: &str) -> String {
    let number = match (text.strip_prefix("0x"), text) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (None, "True") => Some(1),
        (None, "False") => Some(0),
        (None, other) => other.parse().ok(),
    };
    number.map_or_else(|| text.to_owned(), |number| number.to_string())
}

fn messages(setting: &Setting) -> Result<()> {
    let file = setting.directory().join("cm.pcap");
    let read = |arguments: &[&str]| -> Result<String> {
        Ok(tshark(setting, &file).args(arguments).run()?.success()?.stdout)
    };
    let mut compared = 0;
    for attribute in DISSECTED {
        let datagrams: Vec<_> = (0..EACH).map(|seed| random(attribute, seed)).collect();
        capture(&file, &datagrams)?;
        let malformed = read(&["-Y", "_ws.malformed || _ws.short"])?;
        ensure!(malformed.is_empty(), "attribute {attribute:#x}: malformed frames: {malformed}");
        let parsed = datagrams.iter().map(|datagram| Message::parse(datagram));
        let messages: Vec<Message> = parsed.collect::<Result<_, _>>()?;
        let fields: Vec<Vec<Field>> = messages.iter().map(fields).collect();
        // Those of the first have all that the others have, at the same places.
        let names =
            fields.first().context("no datagram")?.iter().flat_map(|(name, _)| ["-e", name]);
        let lines = read(&[vec!["-T", "fields"], names.collect()].concat())?;
        ensure!(lines.lines().count() == messages.len(), "tshark reads {lines}");
        for ((message, fields), line) in messages.iter().zip(&fields).zip(lines.lines()) {
            let shown: Vec<String> = line.split('\t').map(plain).collect();
            for ((name, value), shown) in fields.iter().zip(&shown) {
                ensure!(value == shown, "{name}: {value} here, {shown} to tshark: {message:?}");
                compared += 1;
            }
        }
    }
    ensure!(compared > 1500, "only {compared} fields were compared");
    Ok(())
}
