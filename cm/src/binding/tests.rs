use super::*;

const A: Owner = Owner(1);
const B: Owner = Owner(2);

fn bind(address: &str, port: u16) -> Bind {
    let address = address.parse().unwrap();
    Bind { space: PortSpace::Tcp, address, vlan: 0, port, reuse: false, only_ipv6: false }
}

struct Ports {
    bindings: Bindings,
    limits: Limits,
    random: Random,
}

impl Ports {
    fn new() -> Self {
        let mut state = 0_u64;
        let random = Random::new(Box::new(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            state >> 16
        }));
        let limits =
            Limits { bindings_per_owner: 20, ephemeral_ports: 100..=109, ..Limits::default() };
        Self { bindings: Bindings::default(), limits, random }
    }

    fn bind(&mut self, owner: Owner, bind: Bind) -> Result<(BindingId, u16), Error> {
        self.bindings.bind(owner, bind, &self.limits, &mut self.random)
    }

    fn listener(&mut self, bind: Bind) -> BindingId {
        let (id, _) = self.bind(A, bind).unwrap();
        self.bindings.listen(id, Offer::Connections(Transport::Rc), 1).unwrap();
        id
    }

    fn find(&self, address: &str) -> Option<BindingId> {
        self.find_in(0, address)
    }

    fn find_in(&self, vlan: u16, address: &str) -> Option<BindingId> {
        let untagged = Address::untagged(address.parse().unwrap());
        self.bindings.find(PortSpace::Tcp, 7, Address { vlan, ..untagged })
    }
}

/// CM-16.
#[test]
fn two_bindings_have_a_port_for_different_addresses_only() {
    let mut ports = Ports::new();
    ports.bind(A, bind("10.0.0.1", 7)).unwrap();
    assert_eq!(ports.bind(B, bind("10.0.0.1", 7)), Err(Error::AddressInUse));
    assert_eq!(ports.bind(B, bind("::ffff:10.0.0.1", 7)), Err(Error::AddressInUse));
    assert_eq!(ports.bind(B, bind("0.0.0.0", 7)), Err(Error::AddressNotAvailable));
    assert_eq!(ports.bind(B, bind("::", 7)), Err(Error::AddressNotAvailable));
    ports.bind(B, bind("10.0.0.2", 7)).unwrap();
    ports.bind(B, bind("10.0.0.1", 8)).unwrap();
    ports.bind(B, Bind { space: PortSpace::Udp, ..bind("10.0.0.1", 7) }).unwrap();
    ports.bind(B, Bind { only_ipv6: true, ..bind("::", 7) }).unwrap();
    let ipoib = Bind { space: PortSpace::Ipoib, ..bind("10.0.0.1", 9) };
    assert_eq!(ports.bind(B, ipoib), Err(Error::PortSpace(PortSpace::Ipoib)));
}

/// CM-16.
#[test]
fn a_port_is_shared_where_all_ask_for_it_until_one_listens() {
    let mut ports = Ports::new();
    let shared = Bind { reuse: true, ..bind("10.0.0.1", 7) };
    let (first, _) = ports.bind(A, shared).unwrap();
    let (second, _) = ports.bind(B, shared).unwrap();
    assert_eq!(ports.bind(B, bind("10.0.0.1", 7)), Err(Error::AddressInUse));
    let offer = Offer::Connections(Transport::Rc);
    assert_eq!(ports.bindings.listen(first, offer, 1), Err(Error::AddressInUse));
    ports.bindings.unbind(second).unwrap();
    assert_eq!(ports.bindings.unbind(second), Err(Error::NoBinding(second)));
    ports.bindings.listen(first, offer, 1).unwrap();
    ports.bindings.listen(first, offer, 5).unwrap();
    assert_eq!(ports.bindings.listener(first).unwrap().1.backlog, 5);
    assert_eq!(ports.bind(B, shared), Err(Error::AddressInUse));
    ports.bindings.unbind(first).unwrap();
    ports.bind(B, bind("10.0.0.1", 7)).unwrap();
}

/// CM-14.
#[test]
fn a_request_is_for_the_listener_of_its_address_or_else_for_a_wildcard() {
    let mut ports = Ports::new();
    let one = ports.listener(bind("10.0.0.1", 7));
    let six = ports.listener(Bind { only_ipv6: true, ..bind("fe80::1", 7) });
    assert_eq!(ports.find("10.0.0.1"), Some(one));
    assert_eq!(ports.find("fe80::1"), Some(six));
    assert_eq!(ports.find("10.0.0.2"), None);
    ports.bindings.unbind(one).unwrap();
    assert_eq!(ports.find("10.0.0.1"), None);
    let four = ports.listener(bind("0.0.0.0", 7));
    assert_eq!(ports.find("10.0.0.2"), Some(four));
    assert_eq!(ports.find("fe80::2"), None);
    ports.bindings.unbind(four).unwrap();
    ports.bindings.unbind(six).unwrap();
    let all = ports.listener(bind("::", 7));
    assert_eq!(ports.find("10.0.0.2"), Some(all));
    assert_eq!(ports.find("fe80::2"), Some(all));
    ports.bindings.unbind(all).unwrap();
    let six = ports.listener(Bind { only_ipv6: true, ..bind("::", 7) });
    let four = ports.listener(bind("0.0.0.0", 7));
    assert_eq!((ports.find("10.0.0.2"), ports.find("fe80::2")), (Some(four), Some(six)));
}

/// CM-14, CM-16.
#[test]
fn an_address_in_a_vlan_is_another() {
    let mut ports = Ports::new();
    let untagged = ports.listener(bind("10.0.0.1", 7));
    let tagged = ports.listener(Bind { vlan: 5, ..bind("10.0.0.1", 7) });
    assert_eq!(ports.bind(B, Bind { vlan: 5, ..bind("10.0.0.1", 7) }), Err(Error::AddressInUse));
    assert_eq!(ports.find("10.0.0.1"), Some(untagged));
    assert_eq!(ports.find_in(5, "10.0.0.1"), Some(tagged));
    assert_eq!(ports.find_in(6, "10.0.0.1"), None);
    ports.bindings.unbind(untagged).unwrap();
    ports.bindings.unbind(tagged).unwrap();
    let all = ports.listener(Bind { vlan: 5, ..bind("0.0.0.0", 7) });
    assert_eq!((ports.find("10.0.0.1"), ports.find_in(6, "10.0.0.1")), (Some(all), Some(all)));
}

/// CM-17.
#[test]
fn who_asks_for_any_port_gets_one_of_its_own_until_none_is_left() {
    let mut ports = Ports::new();
    ports.bind(B, bind("0.0.0.0", 105)).unwrap();
    let any = Bind { reuse: true, ..bind("10.0.0.1", 0) };
    let mut got: Vec<u16> = (0..9).map(|_| ports.bind(A, any).unwrap().1).collect();
    assert!(!got.is_sorted(), "ports are drawn: {got:?}");
    got.sort_unstable();
    assert_eq!(got, [100, 101, 102, 103, 104, 106, 107, 108, 109]);
    assert_eq!(ports.bind(A, any), Err(Error::AddressNotAvailable));
    ports.bind(A, bind("10.0.0.2", 0)).unwrap();
}

/// CM-16.
#[test]
fn a_port_has_so_many_bindings_and_no_more() {
    let mut ports = Ports::new();
    ports.limits.bindings_per_owner = usize::MAX;
    let shared = Bind { reuse: true, ..bind("10.0.0.1", 7) };
    for _ in 0..param::BINDINGS_OF_PORT {
        ports.bind(A, shared).unwrap();
    }
    assert_eq!(ports.bind(B, shared), Err(Error::AddressInUse));
    ports.bind(B, Bind { port: 8, ..shared }).unwrap();
}

/// CM-49.
#[test]
fn an_owner_has_so_many_bindings_and_no_more() {
    let mut ports = Ports::new();
    let bound: Vec<_> = (1..=20).map(|port| ports.bind(A, bind("::1", port)).unwrap().0).collect();
    let quota = Err(Error::Quota { what: "bound ports", most: 20 });
    assert_eq!(ports.bind(A, bind("::1", 21)), quota);
    ports.bind(B, bind("::1", 21)).unwrap();
    bound.into_iter().for_each(|id| ports.bindings.unbind(id).unwrap());
    assert_eq!(ports.bindings.len(), 1);
    assert!(ports.bindings.owners.len() == 1 && ports.bindings.ports.len() == 1);
    ports.bind(A, bind("::1", 1)).unwrap();
}

/// CM-16.
#[test]
fn what_a_binding_shares_can_change_and_who_has_the_port_keeps_it() {
    let mut ports = Ports::new();
    let (first, _) = ports.bind(A, bind("10.0.0.1", 7)).unwrap();
    let shared = Bind { reuse: true, ..bind("10.0.0.1", 7) };
    assert_eq!(ports.bind(B, shared), Err(Error::AddressInUse));
    ports.bindings.share(first, true, false).unwrap();
    let (second, _) = ports.bind(B, shared).unwrap();
    ports.bindings.share(first, false, false).unwrap();
    assert_eq!(ports.bind(B, shared), Err(Error::AddressInUse));
    ports.bindings.unbind(second).unwrap();
    assert_eq!(ports.bindings.share(second, true, true), Err(Error::NoBinding(second)));

    let wildcard = ports.listener(bind("::", 8));
    assert_eq!(ports.bind(B, bind("10.0.0.1", 8)), Err(Error::AddressNotAvailable));
    ports.bindings.share(wildcard, false, true).unwrap();
    ports.bind(B, Bind { address: "0.0.0.0".parse().unwrap(), ..bind("10.0.0.1", 8) }).unwrap();
}
