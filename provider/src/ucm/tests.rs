use std::os::fd::AsFd as _;

use hostmem::fdpass::{Wait, Writer, one_way, pair, send};
use hostmem::{Access, SharedMapping};
use shim_abi::{Refusal, Reply};

use super::*;
use crate::control::tests::{Answer, Script, answer, greeting, script};
use crate::events::tests::Goes;

const TOKEN: CmToken = [7; 16];

/// A channel, and the balboad that answers its questions.
struct Bench {
    connection: Arc<ControlConnection>,
    channel: OwnedFd,
    /// balboad's end.
    theirs: Writer,
    script: Script,
}

fn bench(flags: OFlag, answers: Vec<Answer>) -> Bench {
    let (theirs, ours) = one_way().unwrap();
    let opened = (answer(Response::CmChannel { channel: TOKEN }).0, vec![ours]);
    let script = script([greeting(), opened].into_iter().chain(answers).collect());
    let connection = ControlConnection::open(script.directory.path(), 30).unwrap();
    let connection = Arc::new(connection);
    let channel = open(Arc::clone(&connection), flags).unwrap();
    Bench { connection, channel, theirs, script }
}

fn told(output: &[u8]) -> Answer {
    told_void(output, &[])
}

/// An answer with which events are void.
fn told_void(output: &[u8], void: &[u64]) -> Answer {
    answer(Response::CmAnswer { output: output.to_vec(), void: void.to_vec() })
}

/// A command as it goes to balboad, when nothing was read.
fn asked(command: Vec<u8>) -> Request {
    asked_after(0, command)
}

/// A command as it goes to balboad, when that event was read.
fn asked_after(read: u64, command: Vec<u8>) -> Request {
    asked_with(read, 0, command)
}

/// The same, when another one is held.
fn asked_with(read: u64, held: u64, command: Vec<u8>) -> Request {
    Request::CmCommand { channel: CmReader { channel: TOKEN, read, held }, command, from: None }
}

/// An event's output.
fn output(number: u64) -> Vec<u8> {
    vec![number as u8; 336]
}

/// The outcome of reading an event.
fn event(number: u64) -> Result<Done, i32> {
    Ok(Done::Answered { address: 0x1234, output: output(number) })
}

fn refused(errno: i32) -> Answer {
    let refusal = Refusal { errno, reason: "not so".into() };
    (shim_abi::encode(&Reply::Err(refusal)), Vec::new())
}

/// A command as librdmacm writes it.
fn written(number: u32, body: &[u8], room: u16) -> Vec<u8> {
    let length = body.len() as u16;
    [&number.to_ne_bytes()[..], &length.to_ne_bytes(), &room.to_ne_bytes(), body].concat()
}

fn get_event() -> Vec<u8> {
    written(number::GET_EVENT, &0x1234u64.to_ne_bytes(), 376)
}

impl Bench {
    fn fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    fn perform(&self, written: &[u8], value: &[u8]) -> Result<Done, i32> {
        let channel = known(self.fd()).unwrap();
        let command = Command::parse(written).unwrap();
        command.perform(self.fd(), &channel, value).map_err(|error| error.errno())
    }

    /// Tells of events.
    fn tell(&self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.tell_with(*number, None));
    }

    fn tell_with(&self, number: u64, ahead: Option<CmAhead>) {
        let event = shim_abi::encode(&CmEvent { number, output: output(number), ahead });
        send(self.theirs.as_fd(), &event, &[], Wait::AsSocket).unwrap();
    }

    fn is_readable(&self) -> bool {
        peek(self.fd(), libc::MSG_DONTWAIT).is_ok()
    }

    /// Another channel of the same process.
    fn another_channel(&self, socket: &OwnedFd) -> Known {
        let file = file(socket.as_raw_fd()).unwrap();
        let known = Known { file, token: [8; 16], connection: Arc::clone(&self.connection) };
        CHANNELS.with(|all| all.insert(file, CmChannel::new(known.clone())));
        known
    }

    /// The requests to balboad on the channel.
    fn asked(self) -> Vec<Request> {
        drop((self.channel, self.theirs));
        let asked = self.script.server.join().unwrap();
        let asked = asked.iter().skip(2).map(|frame| shim_abi::decode(frame).unwrap());
        asked.collect()
    }
}

#[test]
fn a_channel_is_known_by_whatever_descriptor_until_it_is_forgotten() {
    let bench = bench(OFlag::O_CLOEXEC, vec![]);
    let other = bench.channel.try_clone().unwrap();
    assert_eq!(known(other.as_raw_fd()).map(|known| known.token), Some(TOKEN));
    // Its number may be anything from now on.
    drop(bench.channel);
    assert_eq!(known(other.as_raw_fd()).map(|known| known.token), Some(TOKEN));
    let elsewhere = std::fs::File::open("/dev/null").unwrap();
    assert!(known(elsewhere.as_raw_fd()).is_none());
    assert!(known(-1).is_none());
    forget(other.as_raw_fd());
    assert!(known(other.as_raw_fd()).is_none());
    assert_eq!(Arc::strong_count(&bench.connection), 1, "the connection is kept for nobody");
}

#[test]
fn a_channel_has_the_flags_that_it_is_opened_with() {
    for (flags, mode, closes) in [
        (OFlag::O_RDWR | OFlag::O_CLOEXEC, OFlag::empty(), FdFlag::FD_CLOEXEC),
        (OFlag::O_RDWR | OFlag::O_NONBLOCK, OFlag::O_NONBLOCK, FdFlag::empty()),
    ] {
        let bench = bench(flags, vec![]);
        let set = OFlag::from_bits_retain(fcntl(&bench.channel, FcntlArg::F_GETFL).unwrap());
        assert_eq!(set & OFlag::O_NONBLOCK, mode);
        let set = FdFlag::from_bits_retain(fcntl(&bench.channel, FcntlArg::F_GETFD).unwrap());
        assert_eq!(set, closes);
        forget(bench.fd());
    }
}

#[test]
fn a_command_goes_to_balboad_as_it_is_and_its_answer_to_its_place() {
    let body = [&1u64.to_ne_bytes()[..], &0xabcd_u64.to_ne_bytes(), &[6, 1, 2, 0, 0, 0, 0, 0]];
    let create = written(number::CREATE_ID, &body.concat(), 4);
    let listen = written(7, &[5, 0, 0, 0, 9, 0, 0, 0], 0);
    let bench = bench(OFlag::empty(), vec![told(&[5, 0, 0, 0]), told(&[])]);
    let output = vec![5, 0, 0, 0];
    // Bytes that are written behind the command are not part of it.
    let longer = [&create[..], b"more"].concat();
    assert_eq!(bench.perform(&longer, &[]), Ok(Done::Answered { address: 0xabcd, output }));
    assert_eq!(bench.perform(&listen, &[]), Ok(Done::Nothing));
    assert_eq!(bench.asked(), [asked(create), asked(listen)]);
}

#[test]
fn events_come_by_the_socket_and_commands_say_which_were_read() {
    let bench = bench(OFlag::empty(), vec![told(&[])]);
    assert_eq!(bench.perform(&get_event(), &[]), Ok(Done::NoEvent));
    bench.tell(&[3, 4, 9]);
    assert_eq!(bench.perform(&get_event(), &[]), event(3));
    assert_eq!(bench.perform(&get_event(), &[]), event(4));
    let listen = written(7, &[5, 0, 0, 0, 9, 0, 0, 0], 0);
    assert_eq!(bench.perform(&listen, &[]), Ok(Done::Nothing));
    // An older librdmacm reads it without its end.
    let older = written(number::GET_EVENT, &0x1234u64.to_ne_bytes(), 328);
    let cut = Done::Answered { address: 0x1234, output: vec![9; 328] };
    assert_eq!(bench.perform(&older, &[]), Ok(cut));
    assert_eq!(bench.perform(&get_event(), &[]), Ok(Done::NoEvent));
    assert_eq!(bench.asked(), [asked_after(4, listen)], "events are not asked for");
}

#[test]
fn an_event_that_cannot_be_told_stays_where_it_is() {
    let bench = bench(OFlag::empty(), vec![]);
    bench.tell(&[1]);
    let nowhere = written(number::GET_EVENT, &[0; 8], 336);
    assert_eq!(bench.perform(&nowhere, &[]), Err(libc::EFAULT));
    let short = written(number::GET_EVENT, &0x1234u64.to_ne_bytes(), 323);
    assert_eq!(bench.perform(&short, &[]), Err(libc::ENOSPC));
    assert_eq!(bench.perform(&get_event(), &[]), event(1));
    send(bench.theirs.as_fd(), &[0xff; 40], &[], Wait::AsSocket).unwrap();
    assert_eq!(bench.perform(&get_event(), &[]), Err(libc::EPROTO), "what is no event");
}

#[test]
fn void_events_are_given_to_nobody_and_leave_the_socket_readable_for_others_only() {
    let answers = vec![told_void(&[0; 4], &[1, 2, 4, 5]), told_void(&[0; 4], &[9, 10])];
    let bench = bench(OFlag::empty(), answers);
    bench.tell(&[1, 2, 3, 4, 5]);
    bench.perform(&destroy(1), &[]).unwrap();
    assert!(bench.is_readable());
    assert_eq!(bench.perform(&get_event(), &[]), event(3));
    assert!(!bench.is_readable());
    // Those with which another ends.
    bench.tell(&[9, 10]);
    assert!(bench.is_readable());
    bench.perform(&destroy(2), &[]).unwrap();
    assert!(!bench.is_readable());
    assert_eq!(bench.perform(&get_event(), &[]), Ok(Done::NoEvent));
    assert_eq!(bench.asked(), [asked(destroy(1)), asked_after(5, destroy(2))]);
}

#[test]
fn what_another_process_reads_is_not_waited_for() {
    let bench = bench(OFlag::empty(), vec![told_void(&[0; 4], &[2, 3])]);
    bench.tell(&[1, 2, 3, 4]);
    bench.perform(&destroy(1), &[]).unwrap();
    for number in [1, 2, 3] {
        let Ok(ReadEvent::Event(read)) = look(bench.fd(), MsgFlags::empty()) else { panic!() };
        assert_eq!(read.number, number);
    }
    assert_eq!(bench.perform(&get_event(), &[]), event(4));
    let void = with_channel(file(bench.fd()).unwrap(), |channel| Some(channel.void.len()));
    assert_eq!(void, Some(0));
}

#[test]
fn numbers_of_void_events_that_another_process_has_read_are_not_kept() {
    let answers = vec![told_void(&[0; 4], &[2, 3]), told_void(&[0; 4], &[]), told(&[0; 4])];
    let bench = bench(OFlag::empty(), answers);
    bench.tell(&[1, 2, 3, 4]);
    let void = || with_channel(file(bench.fd()).unwrap(), |channel| Some(channel.void.len()));
    let take = |numbers: &[u64]| {
        for number in numbers {
            let Ok(ReadEvent::Event(read)) = look(bench.fd(), MsgFlags::empty()) else { panic!() };
            assert_eq!(read.number, *number);
        }
    };
    bench.perform(&destroy(1), &[]).unwrap();
    assert_eq!(void(), Some(2));
    take(&[1, 2]);
    bench.perform(&destroy(2), &[]).unwrap();
    assert_eq!(void(), Some(0), "the rest is next, and is taken off");
    assert_eq!(bench.perform(&get_event(), &[]), event(4));
    with_channel(file(bench.fd()).unwrap(), |channel| {
        channel.void.extend([5, 6]);
        Some(())
    });
    bench.perform(&destroy(3), &[]).unwrap();
    assert_eq!(void(), Some(0), "nothing is in the socket");
}

#[test]
fn an_event_that_is_held_is_the_next_and_not_read_before_it_is_given() {
    let answers = vec![told_void(&[0; 4], &[6, 8]), told(&[0; 4]), told_void(&[0; 4], &[9])];
    let bench = bench(OFlag::empty(), answers);
    bench.tell(&[8, 10]);
    let hold = |number| {
        let taken = CmEvent { number, output: output(number), ahead: None };
        let keep = |channel: &mut CmChannel| Some(channel.keep(taken));
        with_channel(file(bench.fd()).unwrap(), keep);
    };
    // It was taken in the place of 6.
    hold(7);
    bench.perform(&destroy(1), &[]).unwrap();
    bench.perform(&destroy(3), &[]).unwrap();
    assert_eq!(bench.perform(&get_event(), &[]), event(7));
    assert_eq!(bench.perform(&get_event(), &[]), event(10), "8 was void");
    // One that is void before it is given.
    hold(9);
    bench.perform(&destroy(2), &[]).unwrap();
    assert_eq!(bench.perform(&get_event(), &[]), Ok(Done::NoEvent));
    let before = [asked_with(0, 7, destroy(1)), asked_with(0, 7, destroy(3))];
    assert_eq!(bench.asked(), [&before[..], &[asked_with(10, 9, destroy(2))]].concat());
}

#[test]
fn events_that_were_not_read_are_left_to_readers_once() {
    let answers = vec![refused(libc::EAGAIN), told_void(&[0; 4], &[8])];
    let bench = bench(OFlag::empty(), answers);
    bench.tell(&[7, 8]);
    let fd = bench.fd();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| bench.perform(&get_event(), &[]));
        bench.perform(&destroy(1), &[]).unwrap();
        assert_eq!(reads.join().unwrap(), event(7));
    });
    assert_eq!(peek(fd, libc::MSG_DONTWAIT), Err(Errno::EAGAIN));
    let asked = bench.asked();
    assert_eq!(asked.len(), 2);
}

#[test]
fn an_id_that_moves_leaves_void_events_on_the_channel_that_it_leaves() {
    let bench = bench(OFlag::empty(), vec![told_void(&[0; 4], &[2])]);
    bench.tell(&[1, 2]);
    assert_eq!(bench.perform(&get_event(), &[]), event(1));
    // Another channel, to which it goes.
    let (ours, theirs) = pair().unwrap();
    let there = CmEvent { number: 2, output: output(2), ahead: None };
    send(theirs.as_fd(), &shim_abi::encode(&there), &[], Wait::AsSocket).unwrap();
    let other = bench.another_channel(&ours);
    let migrate = |from: RawFd| {
        let body = [&0x99u64.to_ne_bytes()[..], &3u32.to_ne_bytes(), &from.to_ne_bytes()];
        written(number::MIGRATE_ID, &body.concat(), 4)
    };
    let command = migrate(bench.fd());
    let done = Command::parse(&command).unwrap().perform(ours.as_raw_fd(), &other, &[]).unwrap();
    assert_eq!(done, Done::Answered { address: 0x99, output: vec![0; 4] });
    assert!(!bench.is_readable());
    assert_eq!(peek(ours.as_raw_fd(), libc::MSG_DONTWAIT), Ok(()));
    let null = std::fs::File::open("/dev/null").unwrap();
    for none in [null.as_raw_fd(), -1, RawFd::MAX] {
        let written = migrate(none);
        let refused = Command::parse(&written).unwrap().perform(ours.as_raw_fd(), &other, &[]);
        assert_eq!(refused.map_err(|error| error.errno()), Err(libc::EINVAL), "{none}");
    }
    forget(ours.as_raw_fd());
    let (channel, left) = (
        CmReader { channel: [8; 16], read: 0, held: 0 },
        CmReader { channel: TOKEN, read: 1, held: 0 },
    );
    assert_eq!(bench.asked(), [Request::CmCommand { channel, command, from: Some(left) }]);
}

#[test]
fn an_option_s_value_goes_behind_its_command() {
    let option = |length: u32| {
        let numbers: [u32; 4] = [3, 0, 1, length];
        let numbers = numbers.map(u32::to_ne_bytes).concat();
        written(number::SET_OPTION, &[&0x5678u64.to_ne_bytes()[..], &numbers].concat(), 0)
    };
    let value = |written: &[u8]| Command::parse(written).unwrap().value();
    assert_eq!(value(&option(0)).unwrap(), None);
    assert_eq!(value(&option(4096)).unwrap(), Some((0x5678, 4096)));
    assert_eq!(value(&option(4097)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(value(&option(4)[..HEADER + 24]).unwrap(), Some((0x5678, 4)));
    assert_eq!(value(&get_event()).unwrap(), None);
    assert_eq!(value(&written(number::SET_OPTION, &[0; 20], 0)).unwrap(), None, "too short a body");

    let bench = bench(OFlag::empty(), vec![told(&[])]);
    assert_eq!(bench.perform(&option(2), &[4, 0]), Ok(Done::Nothing));
    assert_eq!(bench.asked(), [asked([&option(2)[..], &[4, 0]].concat())]);
}

#[test]
fn what_is_no_command_is_refused_here() {
    for short in [&[][..], &[0; 7], &written(4, &[0; 8], 0)[..15]] {
        assert_eq!(Command::parse(short).unwrap_err().errno(), libc::EINVAL, "{short:?}");
    }
}

#[test]
fn an_answer_that_has_no_place_is_not_taken() {
    let four = || told(&[0; 4]);
    let answers = vec![told(&[0; 5]), four(), four(), answer(Response::Done)];
    let bench = bench(OFlag::empty(), answers);
    let destroy = |place: u64| written(number::DESTROY_ID, &place.to_ne_bytes(), 4);
    assert_eq!(bench.perform(&destroy(1), &[]), Err(libc::EPROTO), "longer than the room");
    assert_eq!(bench.perform(&destroy(0), &[]), Err(libc::EFAULT));
    assert_eq!(
        bench.perform(&written(7, &[0; 8], 4), &[]),
        Err(libc::EPROTO),
        "of a command without"
    );
    assert_eq!(bench.perform(&destroy(1), &[]), Err(libc::EPROTO), "of another kind");
}

#[test]
fn a_refusal_has_balboad_s_errno() {
    let bench = bench(OFlag::empty(), vec![refused(libc::EADDRNOTAVAIL), refused(libc::EAGAIN)]);
    for errno in [libc::EADDRNOTAVAIL, libc::EAGAIN] {
        assert_eq!(bench.perform(&written(20, &[0; 8], 0), &[]), Err(errno));
    }
}

/// CREATE_ID of an identifier that the program names so.
fn create(uid: u64) -> Vec<u8> {
    let body = [uid, 0xabcd, 0x0106].map(u64::to_ne_bytes).concat();
    written(number::CREATE_ID, &body, 4)
}

fn destroy(id: u32) -> Vec<u8> {
    let body = [&0x77u64.to_ne_bytes()[..], &id.to_ne_bytes(), &[0; 4]].concat();
    written(number::DESTROY_ID, &body, 4)
}

#[test]
fn the_end_of_balboad_ends_waits_and_is_an_event_of_each_identifier() {
    for goes in Goes::EITHER {
        the_end_is_told(goes);
    }
}

fn the_end_is_told(goes: Goes) {
    let mut accept = [0; ACCEPTED + 16];
    accept[..8].copy_from_slice(&0x30u64.to_ne_bytes());
    accept[ACCEPTED] = 3;
    let accept = written(number::ACCEPT, &accept, 0);
    // The side that connects accepts, too, when it is answered.
    let confirm = written(number::ACCEPT, &[0; ACCEPTED + 16], 0);
    let ids = [1u32, 2].map(|id| told(&id.to_ne_bytes()));
    let others = [told(&[]), told(&[]), told(&[0; 4])];
    let bench = bench(OFlag::empty(), ids.into_iter().chain(others).collect());
    for command in [create(0x10), create(0x20), accept, confirm, destroy(1)] {
        assert!(bench.perform(&command, &[]).is_ok());
    }
    let fd = bench.channel.as_raw_fd();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(fd));
        bench.script.server.join().unwrap();
        goes.with(bench.theirs);
        assert_eq!(waits.join().unwrap(), Ok(()), "{goes:?}");
    });
    let perform = |written: &[u8]| {
        let channel = known(fd).unwrap();
        Command::parse(written).unwrap().perform(fd, &channel, &[]).map_err(|error| error.errno())
    };
    assert_eq!(perform(&written(7, &[0; 8], 0)), Err(libc::EIO));
    for (id, uid) in [(2u32, 0x20u64), (3, 0x30)] {
        let numbers = [id, DEVICE_REMOVAL, 0].map(u32::to_ne_bytes).concat();
        let mut output = [&uid.to_ne_bytes()[..], &numbers].concat();
        output.resize(376, 0);
        assert_eq!(perform(&get_event()), Ok(Done::Answered { address: 0x1234, output }));
    }
    assert_eq!(perform(&get_event()), Err(libc::EIO));
    let leave = written(number::LEAVE_MCAST, &0x77u64.to_ne_bytes(), 4);
    for command in [destroy(2), leave] {
        let destroyed = Ok(Done::Answered { address: 0x77, output: vec![0; 4] });
        assert_eq!(perform(&command), destroyed);
    }
    forget(fd);
}

#[test]
fn what_was_told_before_the_end_of_balboad_is_read_before_it() {
    for goes in Goes::EITHER {
        let bench = bench(OFlag::empty(), vec![told(&[5, 0, 0, 0])]);
        bench.perform(&create(0x50), &[]).unwrap();
        bench.tell(&[1, 2]);
        bench.script.server.join().unwrap();
        goes.with(bench.theirs);
        let fd = bench.channel.as_raw_fd();
        let perform = || {
            let channel = known(fd).unwrap();
            let command = get_event();
            let done = Command::parse(&command).unwrap().perform(fd, &channel, &[]);
            done.map_err(|error| error.errno())
        };
        assert_eq!([perform(), perform()], [event(1), event(2)], "{goes:?}");
        let Ok(Done::Answered { output, .. }) = perform() else { panic!("{goes:?}") };
        assert_eq!(u32_at(&output, 12), Some(DEVICE_REMOVAL), "{goes:?}");
        assert_eq!(perform(), Err(libc::EIO), "{goes:?}");
        forget(fd);
    }
}

#[test]
fn no_event_of_what_ends_after_balboad_is_given() {
    let leave = written(number::LEAVE_MCAST, &0x77u64.to_ne_bytes(), 4);
    for (is_held, ends) in [(false, destroy(5)), (true, destroy(5)), (false, leave)] {
        let bench = bench(OFlag::empty(), vec![told(&[5, 0, 0, 0]), told(&[6, 0, 0, 0])]);
        bench.perform(&create(0x50), &[]).unwrap();
        bench.perform(&create(0x60), &[]).unwrap();
        bench.tell(&[1, 2]);
        if is_held {
            let Ok(ReadEvent::Event(taken)) = look(bench.fd(), MsgFlags::empty()) else { panic!() };
            let hold = |channel: &mut CmChannel| Some(channel.keep(taken));
            with_channel(file(bench.fd()).unwrap(), hold);
        }
        bench.script.server.join().unwrap();
        let fd = bench.channel.as_raw_fd();
        let perform = |written: &[u8]| {
            let channel = known(fd).unwrap();
            let command = Command::parse(written).unwrap();
            command.perform(fd, &channel, &[]).map_err(|error| error.errno())
        };
        let ended = Done::Answered { address: 0x77, output: vec![0; 4] };
        assert_eq!(perform(&ends), Ok(ended));
        // The others are told of the end.
        let left: &[u64] = if ends == destroy(5) { &[0x60] } else { &[0x50, 0x60] };
        for uid in left {
            let Ok(Done::Answered { output, .. }) = perform(&get_event()) else { panic!() };
            assert_eq!(
                (u64_at(&output, 0), u32_at(&output, 12)),
                (Some(*uid), Some(DEVICE_REMOVAL))
            );
        }
        assert_eq!(perform(&get_event()), Err(libc::EIO));
        forget(fd);
    }
}

#[test]
fn an_identifier_is_told_of_the_end_on_the_channel_it_has_gone_to() {
    let answers = vec![told(&[5, 0, 0, 0]), told(&[0; 4])];
    let bench = bench(OFlag::empty(), answers);
    assert!(bench.perform(&create(0x50), &[]).is_ok());
    let (ours, _theirs) = pair().unwrap();
    let other = bench.another_channel(&ours);
    let body = [&0x99u64.to_ne_bytes()[..], &5u32.to_ne_bytes(), &bench.fd().to_ne_bytes()];
    let migrate = written(number::MIGRATE_ID, &body.concat(), 4);
    let migrate = Command::parse(&migrate).unwrap();
    assert!(migrate.perform(ours.as_raw_fd(), &other, &[]).is_ok());
    bench.script.server.join().unwrap();
    drop(bench.theirs);
    let uid = |fd: RawFd| with_ids(file(fd).unwrap(), |ids| ids.get(&5).copied());
    assert_eq!(uid(bench.channel.as_raw_fd()), None);
    assert_eq!(uid(ours.as_raw_fd()), Some(0x50));
    forget(ours.as_raw_fd());
    forget(bench.channel.as_raw_fd());
}

#[test]
fn who_does_not_wait_is_told_so_and_who_does_is_woken() {
    let bench = bench(OFlag::O_NONBLOCK, vec![]);
    assert_eq!(wait(bench.fd()), Err(Errno::EAGAIN));
    // The mode is the descriptor's of this moment.
    fcntl(&bench.channel, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(bench.fd()));
        bench.tell(&[1]);
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
    assert!(bench.is_readable(), "it is for the command to take it");
}

/// A command of 16 bytes about an identifier, which names a place.
fn about(number: u32, id: u32, state: u32, room: u16) -> Vec<u8> {
    let words = [id.to_ne_bytes(), state.to_ne_bytes()].concat();
    written(number, &[&0x5678u64.to_ne_bytes()[..], &words].concat(), room)
}

/// The answers about an identifier that come with an event.
fn ahead(id: u32) -> Option<CmAhead> {
    let answers =
        vec![(CmQuestion::Route, vec![1; 208]), (CmQuestion::QpAttributes(1), vec![2; 144])];
    Some(CmAhead { id, era: 0, answers })
}

/// A bench whose process shares memory with balboad.
fn bench_with_rings(answers: Vec<Answer>) -> (Bench, SharedMapping) {
    let memory = hostmem::memfd::create("rings", 8192).unwrap();
    let map = || SharedMapping::new(memory.as_fd(), 0, 8192, Access::ReadWrite).unwrap();
    let bench = bench(OFlag::O_RDWR, answers);
    bench.connection.share_rings(Arc::new(map()));
    (bench, map())
}

fn answered(output: Vec<u8>) -> Result<Done, i32> {
    Ok(Done::Answered { address: 0x5678, output })
}

#[test]
fn what_came_with_an_event_is_not_asked_for() {
    let other = || told(&[3; 144]);
    let (bench, _rings) = bench_with_rings(vec![other(), other()]);
    bench.tell_with(1, ahead(5));
    assert_eq!(bench.perform(&get_event(), &[]), event(1));
    for _ in 0..2 {
        let route = bench.perform(&about(number::QUERY_ROUTE, 5, 0, 208), &[]);
        assert_eq!(route, answered(vec![1; 208]));
        let init = bench.perform(&about(number::INIT_QP_ATTR, 5, 1, 144), &[]);
        assert_eq!(init, answered(vec![2; 144]));
    }
    // Another state, and another identifier.
    for (id, state) in [(5, 2), (6, 1)] {
        let other = bench.perform(&about(number::INIT_QP_ATTR, id, state, 144), &[]);
        assert_eq!(other, answered(vec![3; 144]));
    }
    assert_eq!(bench.asked().len(), 2);
}

#[test]
fn what_came_with_an_event_ends_with_the_era_or_a_command_that_changes_it() {
    let other = || told(&[3; 144]);
    let commands = [told(&[]), refused(libc::EINVAL), told(&[])];
    let answers = [other(), other(), other(), other()];
    let (bench, rings) = bench_with_rings(commands.into_iter().chain(answers).collect());
    for (number, id) in [(1, 5), (2, 6), (3, 7)] {
        bench.tell_with(number, ahead(id));
        assert_eq!(bench.perform(&get_event(), &[]), event(number));
    }
    let init = |id| bench.perform(&about(number::INIT_QP_ATTR, id, 1, 144), &[]);
    // An ACCEPT of one, a DISCONNECT of another that is refused, and a question, which changes nothing.
    let accepted: Vec<_> = [&[0; 280][..], &5u32.to_ne_bytes(), &[0; 12]].concat();
    bench.perform(&written(number::ACCEPT, &accepted, 0), &[]).unwrap();
    let parted = bench.perform(&written(number::DISCONNECT, &6u32.to_ne_bytes(), 0), &[]);
    assert_eq!(parted, Err(libc::EINVAL));
    bench.perform(&written(number::NOTIFY, &[8, 0, 0, 0, 4, 0, 0, 0], 0), &[]).unwrap();
    assert_eq!(init(5), answered(vec![3; 144]));
    assert_eq!(init(6), answered(vec![3; 144]));
    assert_eq!(init(7), answered(vec![2; 144]));
    // There is no room for the answer ahead, so the question is asked and refused.
    let cut = bench.perform(&about(number::INIT_QP_ATTR, 7, 1, 143), &[]);
    assert_eq!(cut, Err(libc::EPROTO));
    rings.store_release_u32(shim_abi::CM_ERA as usize, 1).unwrap();
    assert_eq!(init(7), answered(vec![3; 144]));
    assert_eq!(bench.asked().len(), 7);
}

#[test]
fn a_forked_child_asks_for_what_came_with_an_event() {
    let (bench, _rings) = bench_with_rings(vec![told(&[3; 208]), told(&[3; 208])]);
    bench.tell_with(1, ahead(5));
    assert_eq!(bench.perform(&get_event(), &[]), event(1));
    let inherit = |channel: &mut CmChannel| Some(channel.inherit(Arc::clone(&bench.connection)));
    with_channel(file(bench.fd()).unwrap(), inherit);
    bench.tell_with(2, ahead(6));
    assert_eq!(bench.perform(&get_event(), &[]), event(2));
    for id in [5, 6] {
        let route = bench.perform(&about(number::QUERY_ROUTE, id, 0, 208), &[]);
        assert_eq!(route, answered(vec![3; 208]));
    }
    assert_eq!(bench.asked().len(), 2);
}
