//! Where the bits of every message lie.

use super::*;

type Fields = &'static [(&'static str, usize, usize)];

const ALL: [(Attribute, Fields); 11] = [
    (Attribute::REQ, Req::FIELDS),
    (Attribute::MRA, Mra::FIELDS),
    (Attribute::REJ, Rej::FIELDS),
    (Attribute::REP, Rep::FIELDS),
    (Attribute::RTU, Rtu::FIELDS),
    (Attribute::DREQ, Dreq::FIELDS),
    (Attribute::DREP, Drep::FIELDS),
    (Attribute::SIDR_REQ, SidrReq::FIELDS),
    (Attribute::SIDR_REP, SidrRep::FIELDS),
    (Attribute::LAP, Lap::FIELDS),
    (Attribute::APR, Apr::FIELDS),
];

/// Bytes that follow from a seed.
fn random(seed: u64) -> Mad {
    let mut state = seed;
    core::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
}

fn datagram(attribute: Attribute, seed: u64) -> Mad {
    let mut bytes = random(seed);
    bytes[..8].copy_from_slice(&[1, 7, 2, 3, 0, 0, 0, 0]);
    bytes[16..24].copy_from_slice(&[0, attribute.0 as u8, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// CM-1.
#[test]
fn only_datagrams_of_the_class_and_of_256_bytes_are_messages() {
    let good = datagram(Attribute::RTU, 1);
    assert!(Message::parse(&good).is_ok());
    assert_eq!(Message::parse(&good[..255]), Err(Malformed::Length(255)));
    assert_eq!(Message::parse(&[&good[..], &[0]].concat()), Err(Malformed::Length(257)));
    for (byte, value) in [(0, 2), (1, 3), (2, 1), (3, 1), (3, 0x83)] {
        let mut bad = good;
        bad[byte] = value;
        assert!(matches!(Message::parse(&bad), Err(Malformed::Class { .. })), "{byte}");
    }
    for attribute in (0..=u16::MAX).filter(|code| !(0x10..=0x1a).contains(code)) {
        let mut bad = good;
        bad[16..18].copy_from_slice(&attribute.to_be_bytes());
        assert_eq!(Message::parse(&bad), Err(Malformed::Attribute(attribute)));
    }
}

/// CM-2.
#[test]
fn fields_do_not_overlap_and_what_lies_between_them_is_reserved() {
    for (attribute, fields) in ALL {
        let mut covered = [false; 232 * 8];
        for (name, first, width) in fields {
            for bit in &mut covered[*first..first + width] {
                assert!(!*bit, "{attribute}: {name} lies over another field");
                *bit = true;
            }
        }
        for seed in 0..50 {
            let bytes = datagram(attribute, seed);
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(message.body.attribute(), attribute);
            assert_eq!(message.transaction_id.to_be_bytes(), bytes[8..16]);
            let again = message.to_bytes();
            assert_eq!(Message::parse(&again), Ok(message));
            for (bit, covered) in covered.iter().enumerate() {
                let of = |bytes: &Mad| bytes[24 + bit / 8] >> (7 - bit % 8) & 1;
                let kept = if *covered { of(&bytes) } else { 0 };
                assert_eq!(of(&again), kept, "{attribute}: bit {bit}");
            }
        }
    }
}

/// CM-4.
#[test]
fn private_data_goes_to_the_end_of_each_message() {
    let lengths = ALL.map(|(attribute, fields)| {
        let (name, first, width) = *fields.last().unwrap();
        assert_eq!((name, first + width), ("private_data", 232 * 8), "{attribute}");
        (attribute.to_string(), width / 8)
    });
    let expected = [
        ("REQ", 92),
        ("MRA", 222),
        ("REJ", 148),
        ("REP", 196),
        ("RTU", 224),
        ("DREQ", 220),
        ("DREP", 224),
        ("SIDR_REQ", 216),
        ("SIDR_REP", 136),
        ("LAP", 168),
        ("APR", 148),
    ];
    assert_eq!(lengths, expected.map(|(name, length)| (name.to_owned(), length)));
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// CM-2. The layout of a REQ, byte by byte.
#[test]
fn a_req_has_the_bytes_that_were_written_down_by_hand() {
    let req = Req {
        local_comm_id: 0x1122_3344,
        service_id: 0x0000_0000_0106_1234,
        local_ca_guid: 0x0211_22ff_fe33_4455,
        local_qpn: 0xabcdef,
        responder_resources: 16,
        initiator_depth: 8,
        remote_cm_response_timeout: 20,
        transport_service: TransportService::UC,
        end_to_end_flow_control: true,
        starting_psn: 0x123456,
        local_cm_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        primary_local_lid: 0xffff,
        primary_remote_lid: 0xffff,
        primary_local_gid: "::ffff:10.0.0.1".parse().unwrap(),
        primary_remote_gid: "::ffff:10.0.0.2".parse().unwrap(),
        primary_flow_label: 0x54321,
        primary_packet_rate: 7,
        primary_traffic_class: 0x68,
        primary_hop_limit: 64,
        primary_sl: 3,
        primary_subnet_local: false,
        primary_local_ack_timeout: 17,
        private_data: [0xa5; 92],
        ..Req::ZERO
    };
    let message = Message { transaction_id: 0x0102_0304_0506_0708, body: req.into() };
    let expected = "
        01070203 0000 0000 0102030405060708 0010 0000 00000000
        11223344 00000000 0000000001061234 021122fffe334455 00000000 00000000
        abcdef10 00000008 000000 a3 123456 a7 ffff 36 f8
        ffff ffff 00000000000000000000ffff0a000001 00000000000000000000ffff0a000002
        54321007 68 40 30 88";
    let mut expected = hex(expected);
    expected.resize(24 + 140, 0);
    expected.resize(256, 0xa5);
    assert_eq!(message.to_bytes()[..], expected);
    assert_eq!(Message::parse(&expected), Ok(message));
}

/// CM-2.
#[test]
fn a_rep_and_a_rej_have_the_bytes_that_were_written_down_by_hand() {
    let rep = Rep {
        local_comm_id: 1,
        remote_comm_id: 2,
        local_qpn: 0x000102,
        starting_psn: 0xfffffe,
        responder_resources: 3,
        initiator_depth: 4,
        target_ack_delay: 15,
        failover_accepted: 1,
        end_to_end_flow_control: true,
        rnr_retry_count: 7,
        srq: true,
        local_ca_guid: 5,
        ..Rep::ZERO
    };
    let bytes = Message { transaction_id: 0, body: rep.into() }.to_bytes();
    let head = "00000001 00000002 00000000 00010200 00000000 fffffe00 03 04 7b f0 0000000000000005";
    assert_eq!(bytes[24..60], hex(head));
    let rej = Rej {
        local_comm_id: 1,
        remote_comm_id: 2,
        message: Rejected::REP,
        info_length: 8,
        reason: RejectReason::TIMEOUT,
        info: [0xee; 72],
        ..Rej::ZERO
    };
    let bytes = Message { transaction_id: 0, body: rej.into() }.to_bytes();
    assert_eq!(bytes[24..40], hex("00000001 00000002 40 10 0004 eeeeeeee"));
}

/// CM-42.
#[test]
fn an_alternate_path_has_a_lid_or_a_gid() {
    assert!(!AlternatePath::NONE.exists());
    for byte in 0..44 {
        let mut path = AlternatePath::NONE;
        path.0[byte] = 1;
        assert_eq!(path.exists(), byte < 2 || (4..20).contains(&byte), "{byte}");
    }
}
