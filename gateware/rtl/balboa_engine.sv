// The queue engine: a skeleton of SEND, WRITE and READ, requester and responder, from the driver's commands to completions
// and events. It is right before it is fast.
//
// This module has the parts, and gives them their turns. A part ends what it begins before another has its turn, but for
// - commands to the transport: while one is under way, the transport's questions are answered;
// - commands of the driver's that let a queue pair send first: all others but commands and resets have their turns;
// - claims: one that lacks its entries waits for them without a turn;
// - payload: its turn ends once its transfers are asked for, of which many are under way;
// - blocks of rings: while one is waited for, payload has its turns.
module balboa_engine
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
#(
    // The vFPGA's number, which QPNs have above their random bits.
    parameter logic [3:0] Window = '0,
    // log2 of the cycles in which host memory answers a request, also where the driver looks at a fault: about 4 s.
    parameter int unsigned PatienceBits = 30
) (
    input  logic                      clk,
    input  logic                      rst_n,
    // Registers.
    input  logic                      write_valid,
    input  register_write_t           write,
    output logic                      write_ready,
    input  logic               [15:0] read_address,
    output logic               [63:0] read_data,
    // Host memory.
    output logic                      sq_rd_valid,
    input  logic                      sq_rd_ready,
    output host_request_t             sq_rd,
    output logic                      sq_wr_valid,
    input  logic                      sq_wr_ready,
    output host_request_t             sq_wr,
    input  logic                      cq_wr_valid,
    input  logic                      recv_valid,
    output logic                      recv_ready,
    input  host_beat_t                recv,
    output logic                      send_valid,
    input  logic                      send_ready,
    output host_beat_t                send,
    output logic                      notify_valid,
    input  logic                      notify_ready,
    output logic               [31:0] notify,
    // Port N.
    output logic                      command_valid,
    input  logic                      command_ready,
    output port_command_t             command,
    input  logic                      command_done_valid,
    output logic                      command_done_ready,
    input  port_command_done_t        command_done,
    output logic                      submit_valid,
    input  logic                      submit_ready,
    output port_submit_t              submit,
    input  logic                      room_valid,
    output logic                      room_ready,
    input  port_room_t                room,
    input  logic                      check_valid,
    output logic                      check_ready,
    input  port_check_t               check,
    output logic                      checked_valid,
    input  logic                      checked_ready,
    output port_checked_t             checked,
    input  logic                      claim_valid,
    output logic                      claim_ready,
    input  port_claim_t               claim,
    output logic                      claimed_valid,
    input  logic                      claimed_ready,
    output port_claimed_t             claimed,
    input  logic                      fetch_valid,
    output logic                      fetch_ready,
    input  port_transfer_t            fetch,
    output logic                      fetched_valid,
    input  logic                      fetched_ready,
    output port_fetched_t             fetched,
    output logic                      fetched_beat_valid,
    input  logic                      fetched_beat_ready,
    output port_beat_t                fetched_beat,
    input  logic                      place_valid,
    output logic                      place_ready,
    input  port_transfer_t            place,
    input  logic                      place_beat_valid,
    output logic                      place_beat_ready,
    input  port_beat_t                place_beat,
    output logic                      placed_valid,
    input  logic                      placed_ready,
    output port_placed_t              placed,
    input  logic                      report_valid,
    output logic                      report_ready,
    input  port_report_t              report,
    // The transport is to forget all; it has, and nothing of before comes from it.
    output logic                      stop,
    input  logic                      transport_quiet,
    // Nothing is under way here, and nothing is to be done before something comes.
    output logic                      engine_quiet
);
  // ---- Turns

  logic [63:0] timestamp;
  logic is_enabled;
  logic is_idle;
  logic takes_done;
  logic takes_check;
  logic takes_fetch;
  logic takes_place;
  logic takes_claim;
  logic takes_report;
  logic waits;
  logic begins_control;
  logic notifies;
  logic takes_lost_qp;
  logic tells;
  logic takes_cq;
  logic takes_qp;
  logic begins_admin;
  logic is_control_idle;
  logic is_events_idle;
  logic is_completions_idle;
  logic is_sender_idle;
  logic is_gather_idle;
  logic is_remote_idle;
  logic is_receiver_idle;
  logic is_admin_idle;
  logic is_execute_idle;
  logic has_fetch_room;
  logic has_place_room;
  logic is_gather_quiet;
  logic is_remote_quiet;
  logic is_payload_quiet;
  logic block_waits;
  logic is_payload_idle;
  logic is_command_idle;
  logic sender_rests;
  logic is_sending;
  logic may_serve;
  logic may_pump;
  logic is_done_due;
  logic is_entries_quiet;
  logic has_fault;
  logic has_entries_fault;
  logic has_receives_fault;
  logic claim_is_due;
  logic is_receiver_quiet;
  logic has_write_fault;
  logic has_expired;
  logic has_key_flip;
  logic has_queue_flip;
  logic has_message_flip;
  logic has_receive_flip;
  logic has_cq_flip;
  logic is_gaining;
  logic may_gain;
  qp_place_t gain_place;
  logic is_gain_awaited;
  logic may_count;
  logic wakes;
  logic has_flip;
  logic is_writes_quiet;
  logic is_fatal;
  logic is_stopped;
  logic is_at_rest;
  logic tells_fault;
  logic control_is_due;
  logic raised;
  logic has_lost_qp;
  logic has_told_cq;
  logic will_tell_cq;
  logic has_no_turn;
  logic is_doorbells_quiet;
  logic has_cq_turn;
  logic has_qp_turn;
  logic admin_is_due;

  assign is_idle = is_control_idle && is_events_idle && is_completions_idle && is_sender_idle && is_gather_idle &&
      is_remote_idle && is_receiver_idle && is_admin_idle && is_execute_idle;
  assign is_payload_quiet = is_gather_quiet && is_remote_quiet && is_entries_quiet &&
      is_receiver_quiet && is_writes_quiet && !is_gaining;
  assign has_flip = has_key_flip || has_queue_flip || has_message_flip || has_receive_flip || has_cq_flip;
  assign has_fault = has_entries_fault || has_receives_fault || has_write_fault || has_expired || has_flip;
  // Beside what decides of the transport's messages, or ends them, no payload begins; nor before an answer to the driver,
  // behind which nothing of before reaches memory.
  assign may_serve = is_payload_idle && is_command_idle &&
      (block_waits || ((sender_rests || is_sending) && is_receiver_idle && is_events_idle));
  assign may_pump = sender_rests && is_receiver_idle && is_events_idle && is_command_idle;
  assign is_payload_idle = is_gather_idle && is_remote_idle;
  assign is_command_idle = is_admin_idle && is_execute_idle && is_control_idle;
  assign is_done_due = waits && command_done_valid;
  assign check_ready = takes_check;
  assign fetch_ready = takes_fetch;
  assign place_ready = takes_place;
  assign claim_ready = takes_claim && !claim_is_due;
  // While the engine stops they are of nothing any more.
  assign report_ready = takes_report || stop;

  assign is_stopped = is_fatal || stop;
  assign is_at_rest = is_idle && is_payload_quiet && !waits;
  // No turn is due but the transport's, which may be waited for.
  assign engine_quiet = is_at_rest && is_doorbells_quiet && !has_fault && !control_is_due && !stop && !raised &&
      !(is_enabled && (!has_no_turn || will_tell_cq || admin_is_due));

  // A command of the driver's that lets a queue pair send first is under way.
  logic is_pumping;

  balboa_turns turns (
      .control_is_due(control_is_due && !is_pumping),
      .admin_is_due  (admin_is_due && !is_pumping),
      .*
  );

  // ---- Starting and stopping

  logic stops;
  logic resets;
  logic starts;
  logic aborts;
  logic events_fatal;
  logic completions_fatal;
  logic sender_fatal;
  logic receiver_fatal;
  logic admin_fatal;
  logic overflow;
  logic admin_rings;
  logic [31:0] admin_told;
  logic consumes;
  window_event_consumer_t consumed;
  logic clears_overflow;
  // Decides the order in which numbers are drawn.
  logic [63:0] seed;
  logic tells_refused;
  window_fault_refused_t refused;
  window_fault_notes_t fault_notes;
  logic [63:0] payload_read;
  logic [63:0] payload_written;
  logic rings;
  logic rings_nobody;
  logic [3:0] rung_page;
  logic [6:0] rung_place;
  doorbell_queue_code_t rung_kind;
  logic [63:0] sq_base;
  logic [4:0] sq_log2;
  logic [63:0] ac_base;
  logic [4:0] ac_log2;
  logic [63:0] ev_base;
  logic [4:0] ev_log2;
  logic [31:0] ev_limit;
  logic sets_gid;
  logic [3:0] set_gid;
  logic is_gid_set;
  logic [15:0] gid_valid;
  logic block_ended;
  logic block_failed;
  logic [511:0] block;
  logic control_block_asks;
  block_ask_t control_block_ask;
  logic control_event_asks;
  event_t control_event_ask;
  logic event_ended;
  logic command_ended;

  // All that is being done is given up.
  assign aborts = events_fatal || completions_fatal || sender_fatal || receiver_fatal || admin_fatal || tells_fault;

  balboa_control control (
      .is_due(control_is_due),
      .begins(begins_control),
      .is_idle(is_control_idle),
      .fails(completions_fatal || sender_fatal || receiver_fatal || admin_fatal || tells_fault),
      .fails_silently(events_fatal),
      .has_flip(tells_fault && has_flip),
      .block_asks(control_block_asks),
      .block_ask(control_block_ask),
      .event_asks(control_event_asks),
      .event_ask(control_event_ask),
      .*
  );

  // ---- Queues

  logic [23:0] find;
  logic has_found_qp;
  qp_place_t found_qp;
  qp_t found;
  logic has_found_cq;
  cq_place_t found_cq;
  logic is_cq_used;
  logic has_found_rq;
  rq_place_t found_rq;
  logic is_rq_used;
  logic has_room_qp;
  qp_place_t room_qp;
  logic writes_qp;
  qp_place_t written_qp;
  rq_place_t written_rq;
  logic is_flushing;
  qp_place_t sender_place;
  logic sender_reads_qp;
  qp_place_t sender_read_qp;
  qp_place_t execute_place;
  logic execute_reads_qp;
  logic reads_qp;
  qp_place_t read_qp;
  qp_t qp;
  logic is_qp_there;
  cq_place_t cq_place;
  logic reads_cq;
  cq_place_t read_cq;
  cq_t cq;
  logic is_cq_there;
  logic reads_rq;
  rq_place_t read_rq;
  rq_t rq;
  logic is_rq_there;
  logic is_drawn;
  logic has_free_qp;
  qp_place_t free_qp;
  logic [23:0] new_qpn;
  logic makes_qp;
  qp_t made_qp;
  logic skips_qp;
  logic has_free_cq;
  cq_place_t free_cq;
  logic [23:0] new_cqn;
  logic makes_cq;
  cq_t made_cq;
  logic skips_cq;
  logic has_free_rq;
  rq_place_t free_rq;
  logic [23:0] new_rqn;
  logic makes_rq;
  rq_t made_rq;
  logic skips_rq;
  logic resizes;
  resize_ask_t resize_ask;
  logic moves;
  logic has_moved;
  logic [31:0] moved_end;
  logic changes_qp;
  logic resets_qp;
  qp_state_t changed_state;
  logic [31:0] changed_access;
  logic changed_can_read;
  logic changed_tells_drained;
  logic [7:0] changed_generation;
  logic breaks_qp;
  logic ends_qp;
  logic ends_cq;
  logic ends_rq;
  logic [23:0] claim_find;
  logic execute_finds;
  logic [23:0] execute_find;
  logic finds;
  qp_place_t finding_qp;
  logic gains;
  qp_place_t gained_qp;
  logic starts_qp;
  qp_place_t started_qp;
  logic gives_up;
  logic starts_rq;
  rq_place_t started_rq;

  assign finds = execute_finds || takes_report || takes_check || takes_place || takes_claim || takes_fetch;
  always_comb begin
    find = execute_find;
    if (takes_report) find = report.qpn;
    if (takes_check) find = check.qpn;
    if (takes_place) find = place.qpn;
    if (takes_claim) find = claim_find;
    if (takes_fetch) find = fetch.qpn;
  end
  assign reads_qp = sender_reads_qp || execute_reads_qp;
  assign read_qp = execute_reads_qp ? found_qp : sender_read_qp;
  // A queue pair is made, or goes to RESET.
  assign starts_qp = makes_qp || (changes_qp && resets_qp);
  assign started_qp = makes_qp ? free_qp : execute_place;
  // A receive queue begins anew when it is made, and with the queue pair that has it for its own.
  assign starts_rq = makes_rq || (starts_qp && !(makes_qp ? made_qp.is_rq_shared : qp.is_rq_shared));
  always_comb begin
    started_rq = qp.rq;
    if (makes_qp) started_rq = made_qp.rq;
    if (makes_rq) started_rq = free_rq;
  end
  // A command that is done makes a queue pair, or takes its room back, first.
  assign room_ready = !takes_done && !command_ended && !gives_up && !is_gaining && may_gain && may_count;
  assign gains = room_valid && room_ready;

  balboa_queues #(
      .Window(Window)
  ) queues (
      .has_qp(has_found_qp),
      .has_cq(has_found_cq),
      .has_rq(has_found_rq),
      .finds_queues(execute_finds),
      .has_flip(has_queue_flip),
      .room_qpn(room.qpn),
      .clears(stops),
      .moves_cq(moves),
      .moved_ring(resize_ask.ring),
      .moved_log2(resize_ask.log2),
      .*
  );

  // ---- Doorbells

  logic pump_asks;
  logic looks;
  logic lags;
  logic loses;
  qp_place_t lost;
  logic is_lost;
  qp_place_t lost_qp;
  cq_place_t next_cq;
  qp_place_t next_qp;
  logic has_slot;
  logic frees_slot;
  logic has_slot_due;
  qp_place_t slot_due;
  logic has_slot_room;
  logic is_rung;
  logic asks_slot;
  logic asks_ahead;
  logic ask_is_record;

  doorbell_queue_code_t made_kind;
  queue_place_t made_place;
  logic [7:0] made_client;

  always_comb begin
    made_kind   = DOORBELL_QUEUE_CODE_SEND;
    made_place  = free_qp;
    made_client = made_qp.page;
    if (makes_rq) begin
      made_kind   = DOORBELL_QUEUE_CODE_RECEIVE;
      made_place  = free_rq;
      made_client = made_rq.page;
    end
    if (makes_cq) begin
      made_kind   = DOORBELL_QUEUE_CODE_COMPLETION;
      made_place  = free_cq;
      made_client = made_cq.page;
    end
  end

  balboa_doorbells doorbells (
      .gains(wakes),
      .gained(gained_qp),
      .has_room(write_ready),
      .makes(makes_qp || makes_cq || makes_rq),
      // What has a slot has its turn by that.
      .looks(looks && !(has_slot && !frees_slot)),
      .looked(sender_place),
      .changes(changes_qp || pump_asks),
      .changed(execute_place),
      .place(sender_place),
      .reads_record((asks_slot || asks_ahead) && ask_is_record),
      .forgets_qp(starts_qp || ends_qp),
      .forgotten_qp(ends_qp ? found_qp : started_qp),
      .forgets_cq(ends_cq),
      .forgotten_cq(found_cq),
      .clears(stops),
      .has_cq(has_cq_turn),
      .has_qp(has_qp_turn),
      .is_quiet(is_doorbells_quiet),
      .*
  );

  // ---- Entries of send queues

  logic is_slot_there;
  logic is_record_asked;
  logic has_record;
  logic [31:0] slot_producer;
  logic takes_record;
  logic may_read_ahead;
  logic unused_has_other;
  logic [5:0] slot_blocks;
  logic has_spare_slot;
  logic has_room_ahead;
  logic [2:0] slot_number;
  logic [511:0] slot_block;
  logic takes_slot;
  logic [4:0] taken_blocks;
  logic forgets_slot;
  logic asks_more;
  logic ask_is_last;
  logic [47:0] ask_address;
  logic [4:0] ask_blocks;
  logic entries_read_valid;
  logic entries_read_ready;
  logic [47:0] entries_address;
  logic [27:0] entries_length;
  logic entries_recv_valid;
  logic entries_recv_ready;
  logic entries_fault;

  balboa_entries #(
      .Queues(QP_PLACES),
      .Slots(8),
      .EntryBlocks(5)
  ) entries (
      .place(sender_place),
      .is_there(is_slot_there),
      .producer(slot_producer),
      .blocks_left(slot_blocks),
      .block_number(slot_number),
      .block(slot_block),
      .takes(takes_slot),
      .taken(taken_blocks),
      .frees(frees_slot),
      .forgets(starts_qp || ends_qp || forgets_slot),
      .forgotten(forgets_slot ? sender_place : ends_qp ? found_qp : started_qp),
      .clears(stops),
      .rests(takes_qp),
      .rested(next_qp),
      .is_due(has_slot_due),
      .due(slot_due),
      .passes(takes_qp && has_slot_due && next_qp == slot_due),
      .other(gain_place),
      .has_other(unused_has_other),
      .is_other_awaited(is_gain_awaited),
      .has_room(has_slot_room),
      .has_spare(has_spare_slot),
      .asks(asks_slot),
      .ask_looks(1'b1),
      .has_fault(has_entries_fault),
      .is_quiet(is_entries_quiet),
      .read_valid(entries_read_valid),
      .read_ready(entries_read_ready),
      .read_address(entries_address),
      .read_length(entries_length),
      .recv_valid(entries_recv_valid),
      .recv_ready(entries_recv_ready),
      .recv_data(recv.data),
      .recv_last(recv.last),
      .fault_valid(entries_fault),
      .*
  );

  // ---- Keys

  logic gather_key_asks;
  key_ask_t gather_key_ask;
  logic remote_key_asks;
  key_ask_t remote_key_ask;
  logic sender_key_asks;
  key_ask_t sender_key_ask;
  key_ask_t execute_key_ask;
  key_ask_t key_ask;
  admin_create_key_t key_region;
  logic execute_key_asks;
  logic key_open;
  logic [63:0] key_iova;
  logic key_there;
  logic key_room;
  logic key_made;
  logic [31:0] key_new;
  logic makes_key;
  logic changes_key;
  logic ends_key;

  always_comb begin
    key_ask = execute_key_ask;
    if (sender_key_asks) key_ask = sender_key_ask;
    if (remote_key_asks) key_ask = remote_key_ask;
    if (gather_key_asks) key_ask = gather_key_ask;
  end

  balboa_keys keys (
      .secret({seed[47:0], seed[63:48]} ^ 64'h3c6e_f372_fe94_f82b),
      .asks(gather_key_asks || remote_key_asks || sender_key_asks || execute_key_asks),
      .ask(key_ask),
      .is_open(key_open),
      .iova(key_iova),
      .is_there(key_there),
      .makes(makes_key),
      .region(key_region),
      .made(key_made),
      .has_room(key_room),
      .new_key(key_new),
      .changes(changes_key),
      .ends(ends_key),
      .clears(stops),
      .has_flip(has_key_flip),
      .*
  );

  // ---- The driver's commands

  logic admin_raises;
  logic executes;
  logic [2:0] command_count;
  logic [2:0][511:0] command_blocks;
  logic executed;
  admin_status_t command_status;
  logic [31:0] command_result;
  logic [7:0] command_generation;
  logic admin_block_asks;
  block_ask_t admin_block_ask;
  logic execute_block_asks;
  block_ask_t execute_block_ask;
  logic execute_command_asks;
  port_command_t execute_command_ask;
  port_command_done_t done;
  logic has_more;
  logic cqe_ended;
  logic limit_asks;
  limit_ask_t limit_ask;
  logic limit_ended;
  logic execute_receive_asks;
  receive_ask_t execute_receive_ask;
  logic receive_ended;
  logic has_completed;

  balboa_admin admin (
      .rings(admin_rings),
      .told(admin_told),
      .is_due(admin_is_due),
      .begins(begins_admin),
      .is_idle(is_admin_idle),
      .fatal(admin_fatal),
      .raises(admin_raises),
      .count(command_count),
      .blocks(command_blocks),
      .status(command_status),
      .result(command_result),
      .generation(command_generation),
      .block_asks(admin_block_asks),
      .block_ask(admin_block_ask),
      .*
  );

  balboa_execute execute (
      .begins(executes),
      .count(command_count),
      .blocks(command_blocks),
      .ended(executed),
      .status(command_status),
      .result(command_result),
      .generation(command_generation),
      .is_idle(is_execute_idle),
      .finds(execute_finds),
      .find(execute_find),
      .has_qp(has_found_qp),
      .has_cq(has_found_cq),
      .has_rq(has_found_rq),
      .found_queue(rq),
      .place(execute_place),
      .reads_qp(execute_reads_qp),
      .is_there(is_qp_there),
      .key_asks(execute_key_asks),
      .key_ask(execute_key_ask),
      .block_asks(execute_block_asks),
      .block_ask(execute_block_ask),
      .command_asks(execute_command_asks),
      .command_ask(execute_command_ask),
      .command_waits(waits),
      .pump_begins(takes_qp && next_qp == execute_place),
      .breaks(breaks_qp && sender_place == execute_place),
      .sender_rests(
          sender_rests && is_completions_idle && is_events_idle && is_gather_idle && is_remote_idle && is_receiver_idle
      ),
      .receive_asks(execute_receive_asks),
      .receive_ask(execute_receive_ask),
      .*
  );

  // ---- Work requests, and their ends

  qp_place_t gather_place;
  port_number_t gather_number;
  logic [3:0] gather_element;
  qp_place_t scatter_place;
  port_number_t scatter_number;
  logic [3:0] scatter_element;
  logic gather_asks_message;
  logic gather_uses_sge;
  logic scatter_asks_message;
  logic scatter_uses_message_sge;
  logic scatter_uses_receive_sge;
  logic is_message_sge_there;
  logic is_receive_sge_there;
  logic is_current;
  message_t asked_message;
  wqe_sge_t asked_sge;
  logic sender_block_asks;
  block_ask_t sender_block_ask;
  logic cqe_asks;
  completion_ask_t cqe_ask;
  logic has_lost;
  logic [RECEIVE_BITS:0] claimed_count;
  logic sender_cqe_asks;
  completion_ask_t sender_cqe_ask;
  logic sender_receive_asks;
  receive_ask_t sender_receive_ask;
  logic receiver_event_asks;
  event_t receiver_event_ask;
  // A queue pair ends, or goes to RESET, without its receives. It completes what it took from a shared queue.
  logic releases;
  logic is_claimed;
  receive_t asked_receive;
  wqe_sge_t asked_receive_sge;
  logic receiver_block_asks;
  block_ask_t receiver_block_ask;
  logic receiver_cqe_asks;
  completion_ask_t receiver_cqe_ask;
  logic sender_event_asks;
  event_t sender_event_ask;
  logic sender_command_asks;
  port_command_t sender_command_ask;

  balboa_sender sender (
      .pumps(takes_qp),
      .pumped(next_qp),
      .fails(takes_lost_qp),
      .failed_place(lost_qp),
      .reports(takes_report),
      .is_idle(is_sender_idle),
      .rests(sender_rests),
      .is_alone(is_payload_idle && is_completions_idle && is_events_idle),
      .fatal(sender_fatal),
      .place(sender_place),
      .reads_qp(sender_reads_qp),
      .read_qp(sender_read_qp),
      .finding(finding_qp),
      .has_found(has_found_qp),
      .found(found_qp),
      .tells_drained(found.tells_drained),
      .starts(starts_qp),
      .started(started_qp),
      .clears(stops),
      .forgets(starts_qp || ends_qp),
      .forgotten(ends_qp ? found_qp : started_qp),
      .may_gain(may_count),
      .gaining(room_qp),
      .is_gaining_there(has_room_qp),
      .gaining_messages(room.messages),
      .gained(gained_qp),
      .asks_message(gather_asks_message || scatter_asks_message),
      .asked_place(is_remote_idle ? gather_place : scatter_place),
      .asked_number(is_remote_idle ? gather_number : scatter_number),
      .asked_element(is_remote_idle ? gather_element : scatter_element),
      .uses_sge(gather_uses_sge || scatter_uses_message_sge),
      .is_sge_there(is_message_sge_there),
      .has_flip(has_message_flip),
      .key_asks(sender_key_asks),
      .key_ask(sender_key_ask),
      // Payload is the one that asks in the same cycle.
      .key_ready(!gather_key_asks && !remote_key_asks),
      .receive_asks(sender_receive_asks),
      .receive_ask(sender_receive_ask),
      .block_asks(sender_block_asks),
      .block_ask(sender_block_ask),
      .cqe_asks(sender_cqe_asks),
      .cqe_ask(sender_cqe_ask),
      .event_asks(sender_event_asks),
      .event_ask(sender_event_ask),
      .command_asks(sender_command_asks),
      .command_ask(sender_command_ask),
      .command_waits(waits),
      .*
  );

  logic receives_read_valid;
  logic receives_read_ready;
  logic [47:0] receives_address;
  logic [27:0] receives_length;
  logic receives_recv_valid;
  logic receives_recv_ready;
  logic receives_fault;

  balboa_receiver receiver (
      .claims(takes_claim),
      .is_idle(is_receiver_idle),
      .is_quiet(is_receiver_quiet),
      .clears(stops),
      .read_valid(receives_read_valid),
      .read_ready(receives_read_ready),
      .read_address(receives_address),
      .read_length(receives_length),
      .recv_valid(receives_recv_valid),
      .recv_ready(receives_recv_ready),
      .recv_data(recv.data),
      .recv_last(recv.last),
      .fault_valid(receives_fault),
      .has_fault(has_receives_fault),
      .fatal(receiver_fatal),
      .find(claim_find),
      .finding(finding_qp),
      .has_found(has_found_qp),
      .found_place(found_qp),
      .starts(starts_qp),
      .started(started_qp),
      .asks(sender_receive_asks || execute_receive_asks),
      .ask(execute_receive_asks ? execute_receive_ask : sender_receive_ask),
      .ended(receive_ended),
      .limits(limit_asks),
      .asks_message(scatter_asks_message),
      .asked_place(scatter_place),
      .asked_number(scatter_number),
      .asked_element(scatter_element),
      .uses_sge(scatter_uses_receive_sge),
      .is_sge_there(is_receive_sge_there),
      .asked_sge(asked_receive_sge),
      .has_flip(has_receive_flip),
      .counts(releases),
      .block_asks(receiver_block_asks),
      .block_ask(receiver_block_ask),
      .cqe_asks(receiver_cqe_asks),
      .cqe_ask(receiver_cqe_ask),
      .event_asks(receiver_event_asks),
      .event_ask(receiver_event_ask),
      .*
  );

  // ---- Completions and events

  logic completions_block_asks;
  block_ask_t completions_block_ask;
  logic completions_event_asks;
  event_t completions_event_ask;
  logic events_block_asks;
  block_ask_t events_block_ask;
  event_t event_ask;

  logic [31:0] unread;
  logic holds;
  logic cq_waits;
  logic [29:0] fired_sequence;
  cq_place_t told_place;
  logic [29:0] told_sequence;

  assign releases = (changes_qp && resets_qp) || (ends_qp && !qp.is_rq_shared);
  assign cqe_asks = sender_cqe_asks || receiver_cqe_asks;
  assign cqe_ask  = receiver_cqe_asks ? receiver_cqe_ask : sender_cqe_ask;

  balboa_completions completions (
      .place(cq_place),
      .has_flip(has_cq_flip),
      .starts(makes_cq),
      .started(free_cq),
      .clears(stops),
      .asks(cqe_asks),
      .ask(cqe_ask),
      .ended(cqe_ended),
      .released_cq(qp.receive_cq),
      .released(claimed_count),
      .arms(takes_cq),
      .armed_place(next_cq),
      .waits(cq_waits),
      .is_idle(is_completions_idle),
      .fatal(completions_fatal),
      .block_asks(completions_block_asks),
      .block_ask(completions_block_ask),
      .event_asks(completions_event_asks),
      .event_ask(completions_event_ask),
      .*
  );

  balboa_waiting waiting (
      .limit(ev_limit),
      .waits(cq_waits),
      .place(cq_place),
      .client(cq.page),
      .sequence_(fired_sequence),
      .forgets(ends_cq),
      .forgotten(found_cq),
      .clears(stops),
      .will_be_due(will_tell_cq),
      .is_due(has_told_cq),
      .next(told_place),
      .next_sequence(told_sequence),
      .takes(tells),
      .*
  );

  always_comb begin
    event_ask = control_event_ask;
    if (sender_event_asks) event_ask = sender_event_ask;
    if (receiver_event_asks) event_ask = receiver_event_ask;
    if (completions_event_asks) event_ask = completions_event_ask;
  end

  balboa_events events (
      .base(ev_base),
      .log2(ev_log2),
      .asks(control_event_asks || sender_event_asks || receiver_event_asks || completions_event_asks),
      .ask(event_ask),
      .ended(event_ended),
      .fatal(events_fatal),
      .raises(admin_raises),
      .is_idle(is_events_idle),
      .block_asks(events_block_asks),
      .block_ask(events_block_ask),
      .*
  );
  assign notify = '0;

  // ---- Commands to the transport

  port_command_t command_ask;

  always_comb begin
    command_ask = execute_command_ask;
    if (sender_command_asks) command_ask = sender_command_ask;
  end

  balboa_commands commands (
      .asks(execute_command_asks || sender_command_asks),
      .ask(command_ask),
      .may_take(is_idle && is_payload_quiet),
      .takes(takes_done),
      .ended(command_ended),
      .*
  );

  // ---- The transport's questions

  // Of an engine that stops none is served: behind the event that tells so no payload reaches memory.
  logic has_served_qp;
  logic gather_read_valid;
  logic [47:0] gather_address;
  logic [27:0] gather_length;
  logic gather_read_ready;
  logic gather_recv_valid;
  logic gather_recv_ready;
  logic gather_fault;
  logic remote_write_valid;
  logic [47:0] remote_address;
  logic [27:0] remote_length;
  logic remote_write_ready;
  logic remote_send_valid;
  logic remote_send_ready;
  logic remote_written;
  logic remote_fault;
  host_beat_t remote_send;

  assign has_served_qp = has_found_qp && !is_stopped;

  balboa_gather gather (
      .asks(takes_fetch),
      .ask(fetch),
      .is_idle(is_gather_idle),
      .has_room(has_fetch_room),
      .is_quiet(is_gather_quiet),
      .has_found(has_served_qp),
      .found_place(found_qp),
      .asks_message(gather_asks_message),
      .place(gather_place),
      .number(gather_number),
      .element(gather_element),
      .message(asked_message),
      .uses_sge(gather_uses_sge),
      .is_sge_there(is_message_sge_there),
      .sge(asked_sge),
      .key_asks(gather_key_asks),
      .key_ask(gather_key_ask),
      .read_valid(gather_read_valid),
      .read_ready(gather_read_ready),
      .read_address(gather_address),
      .read_length(gather_length),
      .recv_valid(gather_recv_valid),
      .recv_ready(gather_recv_ready),
      .fault_valid(gather_fault),
      .beat_valid(fetched_beat_valid),
      .beat_ready(fetched_beat_ready),
      .beat(fetched_beat),
      .*
  );

  balboa_remote remote (
      .checks(takes_check),
      .places(takes_place),
      .is_idle(is_remote_idle),
      .has_room(has_place_room),
      .is_quiet(is_remote_quiet),
      .has_found(has_served_qp),
      .found_place(found_qp),
      .asks_message(scatter_asks_message),
      .message_place(scatter_place),
      .number(scatter_number),
      .element(scatter_element),
      .message(asked_message),
      .uses_message_sge(scatter_uses_message_sge),
      .message_sge(asked_sge),
      .receive(asked_receive),
      .uses_receive_sge(scatter_uses_receive_sge),
      .receive_sge(asked_receive_sge),
      .key_asks(remote_key_asks),
      .key_ask(remote_key_ask),
      .write_valid(remote_write_valid),
      .write_ready(remote_write_ready),
      .write_address(remote_address),
      .write_length(remote_length),
      .send_valid(remote_send_valid),
      .send_ready(remote_send_ready),
      .send(remote_send),
      .written(remote_written),
      .fault_valid(remote_fault),
      .beat_valid(place_beat_valid),
      .beat_ready(place_beat_ready),
      .beat(place_beat),
      .*
  );

  // ---- Host memory: blocks of rings, and payload

  balboa_memory #(
      .PatienceBits(PatienceBits)
  ) memory (
      .clears     (stops),
      .may_end    (is_gather_idle && is_remote_idle),
      // Of an engine that has stopped nothing more is told.
      .tells_fault(tells_fault || is_stopped),
      .*
  );
endmodule
