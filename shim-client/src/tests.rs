use hostmem::{fdpass, memfd};
use nix::sys::socket::{Backlog, bind, listen};

use super::*;

/// A client, and balboad's end of its connection.
fn pair() -> (Client, OwnedFd) {
    let (socket, balboad) = fdpass::pair().unwrap();
    (
        Client {
            socket,
            daemon: Pid::this(),
            room: vec![0; MAX_MESSAGE],
            hand_over: HandOver::new(),
        },
        balboad,
    )
}

/// Says something before it is asked for, so that the test need not wait.
fn say(balboad: &OwnedFd, message: &[u8]) {
    send(balboad.as_fd(), message, &[], Wait::Never).unwrap();
}

fn heard(balboad: &OwnedFd) -> Vec<u8> {
    let mut room = vec![0; MAX_MESSAGE];
    let received = receive(balboad.as_fd(), &mut room, Wait::Never).unwrap();
    room.truncate(received.bytes);
    room
}

#[test]
fn a_connection_is_to_whom_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let failed = |expected| {
        let error = Client::connect(directory.path(), 30).unwrap_err();
        let told = matches!(error, ConnectError::Socket { errno, .. } if errno == expected);
        assert!(told, "{error:?}, not {expected}");
    };
    failed(Errno::ENOENT);
    let address = UnixAddr::new(&directory.path().join(SOCKET_NAME)).unwrap();
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(listener.as_raw_fd(), &address).unwrap();
    failed(Errno::ECONNREFUSED);
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    // One's own user is believed.
    assert_eq!(Client::connect(directory.path(), 30).unwrap().daemon(), Pid::this());
}

#[test]
fn a_greeting_says_who_it_is_and_an_answer_brings_descriptors() {
    let (mut client, balboad) = pair();
    say(&balboad, &shim_abi::hello_frame(&Reply::Ok(Response::Done)));
    client.greet("a test".into(), Role::Tool).unwrap();
    let hello = shim_abi::decode_hello::<Hello>(&heard(&balboad)).unwrap();
    assert_eq!(hello, Hello { build: "a test".into(), role: Role::Tool });

    let answer = shim_abi::encode(&Reply::Ok(Response::Status { length: 1 }));
    let text = memfd::create("text", 4096).unwrap();
    send(balboad.as_fd(), &answer, &[text.as_fd()], Wait::Never).unwrap();
    let (response, fds) = client.ask(&Request::Status).unwrap();
    assert_eq!((response, fds.len()), (Response::Status { length: 1 }, 1));
    assert_eq!(shim_abi::decode::<Request>(&heard(&balboad)), Ok(Request::Status));
}

#[test]
fn what_is_no_answer_is_told_apart() {
    let (mut client, balboad) = pair();
    let refusal = Refusal { errno: 1, reason: "not you".into() };
    say(&balboad, &shim_abi::hello_frame(&Reply::Err(refusal.clone())));
    let refused = client.greet(String::new(), Role::Provider).unwrap_err();
    assert!(matches!(&refused, Error::Refused(it) if *it == refusal), "{refused:?}");
    say(&balboad, &shim_abi::hello_frame(&Reply::Ok(Response::Pd { pdn: 1 })));
    let wrong = client.greet(String::new(), Role::Provider).unwrap_err();
    assert!(matches!(&wrong, Error::Greeting(it) if **it == Response::Pd { pdn: 1 }), "{wrong:?}");
    say(&balboad, b"\xff");
    let garbage = client.ask(&Request::ListCards).unwrap_err();
    assert!(matches!(garbage, Error::Decode(DecodeError::Malformed(1))), "{garbage:?}");
    say(&balboad, &[0; MAX_MESSAGE + 1]);
    let long = client.ask(&Request::ListCards).unwrap_err();
    assert!(matches!(long, Error::Host(hostmem::Error::Truncated { .. })), "{long:?}");
    drop(balboad);
    assert!(matches!(client.ask(&Request::ListCards), Err(Error::Gone)));
}

#[test]
fn who_hung_up_drops_what_comes_late_and_sees_the_end() {
    let (mut client, balboad) = pair();
    client.hang_up();
    assert!(heard(&balboad).is_empty(), "nothing more will come");
    assert!(!client.has_ended());
    say(&balboad, &shim_abi::encode(&Reply::Ok(Response::Done)));
    say(&balboad, &[0; MAX_MESSAGE + 1]);
    assert!(!client.has_ended());
    drop(balboad);
    assert!(client.has_ended());
}

#[test]
fn an_answer_that_does_not_come_is_not_waited_for_longer_than_the_limit() {
    let (mut client, _balboad) = pair();
    setsockopt(&client.socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(1)).unwrap();
    assert!(matches!(client.ask(&Request::ListCards), Err(Error::Silent)));
}
