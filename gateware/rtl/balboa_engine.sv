// The queue engine, one thing at a time: a skeleton of RDMA WRITE, requester and responder, from the driver's commands to
// completions and events. It is right before it is fast; nothing in it is pipelined.
//
// What it begins it ends before it looks at the next thing, but for commands to the transport: while one is under way, the
// transport's questions are answered.
module balboa_engine
  import balboa_card_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
  import balboa_number_pkg::*;
  import balboa_transition_pkg::*;
#(
    parameter int unsigned Qps = 64,
    parameter int unsigned Cqs = 64,
    parameter int unsigned Rqs = 64,
    parameter int unsigned Keys = 256,
    // The vFPGA's number, which QPNs have above their random bits.
    parameter logic [3:0] Window = '0,
    localparam int unsigned QP_BITS = $clog2(Qps),
    localparam int unsigned CQ_BITS = $clog2(Cqs),
    localparam int unsigned RQ_BITS = $clog2(Rqs)
) (
    input  logic               clk,
    input  logic               rst_n,
    // Decides the order in which numbers are drawn; held.
    input  logic        [63:0] seed,
    // Registers.
    input  logic               write_valid,
    input  register_write_t    write,
    input  logic        [15:0] read_address,
    output logic        [63:0] read_data,
    // Host memory.
    output logic               sq_rd_valid,
    input  logic               sq_rd_ready,
    output host_request_t      sq_rd,
    output logic               sq_wr_valid,
    input  logic               sq_wr_ready,
    output host_request_t      sq_wr,
    input  logic               cq_wr_valid,
    input  logic               recv_valid,
    output logic               recv_ready,
    input  host_beat_t         recv,
    output logic               send_valid,
    input  logic               send_ready,
    output host_beat_t         send,
    output logic               notify_valid,
    input  logic               notify_ready,
    output logic        [31:0] notify,
    // The driver refused the fault of the request that is under way; one cycle.
    input  logic               fault_valid,
    // Port N.
    output logic               command_valid,
    input  logic               command_ready,
    output port_command_t      command,
    input  logic               command_done_valid,
    output logic               command_done_ready,
    input  port_command_done_t command_done,
    output logic               submit_valid,
    input  logic               submit_ready,
    output port_submit_t       submit,
    input  logic               room_valid,
    output logic               room_ready,
    input  port_room_t         room,
    input  logic               check_valid,
    output logic               check_ready,
    input  port_check_t        check,
    output logic               checked_valid,
    input  logic               checked_ready,
    output port_checked_t      checked,
    input  logic               claim_valid,
    output logic               claim_ready,
    input  port_claim_t        claim,
    output logic               claimed_valid,
    input  logic               claimed_ready,
    output port_claimed_t      claimed,
    input  logic               fetch_valid,
    output logic               fetch_ready,
    input  port_transfer_t     fetch,
    output logic               fetched_valid,
    input  logic               fetched_ready,
    output port_fetched_t      fetched,
    output logic               fetched_beat_valid,
    input  logic               fetched_beat_ready,
    output port_beat_t         fetched_beat,
    input  logic               place_valid,
    output logic               place_ready,
    input  port_transfer_t     place,
    input  logic               place_beat_valid,
    output logic               place_beat_ready,
    input  port_beat_t         place_beat,
    output logic               placed_valid,
    input  logic               placed_ready,
    output port_placed_t       placed,
    input  logic               report_valid,
    output logic               report_ready,
    input  port_report_t       report
);
  // ---- Limits

  localparam int unsigned MESSAGE_BITS = 5;
  localparam int unsigned MESSAGES = 2 ** MESSAGE_BITS;
  localparam int unsigned LOG2_CQ = 12;
  localparam int unsigned LOG2_SQ = 10;
  localparam int unsigned LOG2_RQ = 10;
  localparam logic [31:0] MAX_MESSAGE = 32'h4000_0000;
  localparam logic [63:0] CAPABILITIES = WINDOW_CAPABILITIES_RC | WINDOW_CAPABILITIES_WRITE;
  localparam logic [31:0] ACCESSES = KEY_ACCESS_LOCAL_WRITE | KEY_ACCESS_REMOTE_WRITE |
      KEY_ACCESS_REMOTE_READ | KEY_ACCESS_REMOTE_ATOMIC | KEY_ACCESS_WINDOW_BIND |
      KEY_ACCESS_ZERO_BASED | KEY_ACCESS_RELAXED_ORDERING;
  // Nanoseconds of a cycle.
  localparam int unsigned NANOSECONDS = 4;

  // ---- States

  typedef enum logic [6:0] {
    IDLE,
    // A block of host memory.
    READ_ASK,
    READ_TAKE,
    WRITE_ASK,
    WRITE_GIVE,
    WRITE_END,
    // A completion, an event, the interrupt, a command to the transport.
    CQE_BEGIN,
    CQE_ROOM,
    CQE_WRITE,
    CQE_WRITTEN,
    EVENT_BEGIN,
    EVENT_WRITTEN,
    NOTIFY,
    COMMAND,
    // Starting and stopping.
    ENABLE_CHECK,
    ENABLE_SQ,
    ENABLE_CQ,
    ENABLE_EVENTS,
    ENABLED,
    STOP_QPS,
    STOP_GIDS,
    STOP_END,
    FATAL,
    FATAL_END,
    // Commands of the driver.
    ADMIN,
    ADMIN_FIRST,
    ADMIN_MORE,
    ADMIN_RUN,
    ADMIN_PROBE,
    ADMIN_DRAW,
    ADMIN_KEY,
    ADMIN_QP_SEND_CQ,
    ADMIN_QP_RECEIVE_CQ,
    ADMIN_QP_RQ,
    ADMIN_QP_MADE,
    ADMIN_MODIFY,
    ADMIN_MODIFIED,
    ADMIN_DESTROYED,
    ADMIN_GID,
    ADMIN_BLOCKS,
    ADMIN_RESPOND,
    ADMIN_RESPONDED,
    ADMIN_ANSWER,
    ADMIN_ANSWERED,
    // Work requests.
    PUMP,
    PUMP_RECORD,
    PUMP_ENTRY,
    PUMP_BLOCK,
    PUMP_CHECK,
    PUMP_ELEMENT,
    PUMP_KEY,
    PUMP_KEPT,
    PUMP_SUBMIT,
    PUMP_SENT,
    FLUSH,
    FLUSH_MESSAGE,
    FLUSH_POSTED,
    FLUSH_RECORD,
    FLUSH_ENTRY,
    FLUSH_TAKEN,
    FAIL,
    FAIL_TOLD,
    ARM,
    ARMED,
    // The transport's questions and reports.
    REPORT,
    REPORT_ENDED,
    CHECK,
    CHECK_KEY,
    CHECKED,
    FETCH,
    FETCH_MESSAGE,
    FETCH_ELEMENT,
    FETCH_KEY,
    FETCH_ASK,
    FETCH_DATA,
    FETCH_ANSWER,
    FETCH_GIVE,
    PLACE,
    PLACE_KEY,
    PLACE_ASK,
    PLACE_DATA,
    PLACE_END,
    PLACE_DRAIN,
    PLACE_ANSWER,
    ANSWER
  } state_t;

  // A message that is under way, or an entry that failed.
  typedef struct packed {
    logic [31:0] index;
    logic [31:0] length;
    logic        is_signaled;
    logic        is_inline;
    logic        has_failed;
    logic [4:0]  elements;
    cqe_opcode_t opcode;
    cqe_status_t status;
  } message_t;

  state_t state;

  // ---- Objects

  logic [Qps-1:0] qp_valid;
  logic [Qps-1:0] qp_look;
  logic [Qps-1:0] qp_lost;
  logic [Qps-1:0] qp_stopped;
  logic [23:0] qp_number[Qps];
  logic [20-QP_BITS-1:0] qp_uses[Qps];
  logic [7:0] qp_generation[Qps];
  logic [7:0] qp_page[Qps];
  logic [31:0] qp_pdn[Qps];
  logic [CQ_BITS-1:0] qp_send_cq[Qps];
  logic [CQ_BITS-1:0] qp_receive_cq[Qps];
  logic [RQ_BITS-1:0] qp_rq[Qps];
  qp_state_t qp_state[Qps];
  logic [31:0] qp_access[Qps];
  logic [63:0] qp_ring[Qps];
  logic [4:0] qp_log2[Qps];
  logic [31:0] qp_fetch[Qps];
  logic [31:0] qp_producer[Qps];
  // Numbers of messages: the next one, and the oldest that is not complete. Those that failed here have numbers, too,
  // which the transport never hears of.
  logic [31:0] qp_next[Qps];
  logic [31:0] qp_oldest[Qps];
  // Places for messages that the transport gave, and those that were used.
  logic [15:0] qp_room[Qps];
  logic [15:0] qp_used[Qps];
  message_t messages[Qps*MESSAGES];
  wqe_sge_t elements[Qps*MESSAGES*16];

  logic [Cqs-1:0] cq_valid;
  logic [Cqs-1:0] cq_look;
  logic [Cqs-1:0] cq_overrun;
  logic [Cqs-1:0] cq_has_solicited;
  logic [23:0] cq_number[Cqs];
  logic [24-CQ_BITS-1:0] cq_uses[Cqs];
  logic [7:0] cq_page[Cqs];
  logic [63:0] cq_ring[Cqs];
  logic [4:0] cq_log2[Cqs];
  logic [31:0] cq_producer[Cqs];
  logic [31:0] cq_consumer[Cqs];
  logic [1:0] cq_armed[Cqs];
  logic [29:0] cq_sequence[Cqs];
  logic [31:0] cq_solicited_end[Cqs];
  logic [15:0] cq_users[Cqs];

  logic [Rqs-1:0] rq_valid;
  logic [Rqs-1:0] rq_used;
  logic [23:0] rq_number[Rqs];
  logic [20-RQ_BITS-1:0] rq_uses[Rqs];

  logic [15:0] gid_valid;

  // ---- What is being done

  logic [63:0] timestamp;
  logic is_enabled;
  logic [31:0] fatal_code;
  logic wants_enable;
  logic wants_reset;
  logic admin_rung;
  logic [31:0] admin_end;
  logic [31:0] admin_consumer;
  logic [31:0] admin_producer;
  logic [63:0] sq_base;
  logic [4:0] sq_log2;
  logic [63:0] ac_base;
  logic [4:0] ac_log2;
  logic [63:0] ev_base;
  logic [4:0] ev_log2;
  logic [31:0] ev_producer;
  logic [31:0] ev_consumer;
  logic ev_overflow;
  logic raised;
  // A block of host memory: where, what, and who goes on.
  logic [63:0] io_address;
  logic [511:0] io_block;
  logic io_failed;
  state_t io_return;
  cqe_t e_cqe;
  logic [CQ_BITS-1:0] e_cq;
  logic [QP_BITS-1:0] e_qp;
  state_t e_return;
  event_t v_event;
  state_t v_return;
  logic waits;
  state_t c_return;
  port_command_done_t done;
  // The QP, the completion queue.
  logic [QP_BITS-1:0] q;
  logic [CQ_BITS-1:0] c;
  logic [QP_BITS-1:0] last_q;
  cqe_status_t cause;
  // The driver's command.
  logic [511:0] a_block[3];
  logic [2:0] a_count;
  logic [2:0] a_read;
  admin_status_t a_status;
  logic [31:0] a_result;
  logic [7:0] a_generation;
  logic [3:0] a_blocks_left;
  logic [15:0] a_counter;
  logic [CQ_BITS-1:0] a_send_cq;
  logic [CQ_BITS-1:0] a_receive_cq;
  logic [RQ_BITS-1:0] a_rq;
  logic [23:0] find;
  // The work request.
  logic [511:0] w_block[5];
  logic [2:0] w_read;
  logic [4:0] w_element;
  logic [35:0] w_length;
  logic w_unreachable;
  logic [31:0] w_posted;
  message_t w_message;
  // Transfers of the transport.
  port_transfer_t t;
  port_report_t r;
  port_check_t k;
  logic [4:0] t_element;
  logic [31:0] t_skip;
  logic [12:0] t_left;
  logic [12:0] t_piece;
  logic [12:0] t_beats_left;
  port_verdict_t t_verdict;

  // ---- The window

  logic [63:0] r_admin_sq_base;
  logic [63:0] r_admin_sq_size;
  logic [63:0] r_admin_cq_base;
  logic [63:0] r_admin_cq_size;
  logic [63:0] r_event_base;
  logic [63:0] r_event_size;
  logic [63:0] r_event_rings;
  logic enables;
  logic resets;
  logic admin_rings;
  logic [31:0] admin_told;
  logic consumes;
  logic clears_overflow;
  window_event_consumer_t consumed;
  logic rings;
  logic [3:0] rung_page;
  logic [6:0] rung_place;
  doorbell_queue_code_t rung_kind;
  window_status_t status;
  logic clear_rings;

  always_comb begin
    status = '0;
    status.enabled = is_enabled;
    status.fatal = fatal_code != '0;
    status.fatal_code = fatal_code;
    status.event_overflow = ev_overflow;
  end
  assign clear_rings = state == STOP_END;

  balboa_window #(
      .Qps(Qps),
      .Cqs(Cqs),
      .Rqs(Rqs),
      .Keys(Keys),
      .Capabilities(CAPABILITIES),
      .Log2Cq(LOG2_CQ),
      .Log2Sq(LOG2_SQ),
      .Log2Rq(LOG2_RQ),
      .MaxMessage(MAX_MESSAGE)
  ) window (
      .clk,
      .rst_n,
      .write_valid,
      .write,
      .read_address,
      .read_data,
      .status,
      .timestamp,
      .admin_sq_base(r_admin_sq_base),
      .admin_sq_size(r_admin_sq_size),
      .admin_cq_base(r_admin_cq_base),
      .admin_cq_size(r_admin_cq_size),
      .event_base(r_event_base),
      .event_size(r_event_size),
      .event_rings(r_event_rings),
      .clear_rings,
      .enables,
      .resets,
      .admin_rings,
      .admin_producer(admin_told),
      .consumes,
      .consumed,
      .clears_overflow,
      .rings,
      .rung_page,
      .rung_kind,
      .rung_place
  );

  // ---- Numbers and places

  logic [63:0] qp_secret;
  logic [63:0] cq_secret;
  logic [63:0] rq_secret;
  logic [63:0] key_secret;
  logic [QP_BITS-1:0] found_q;
  logic [CQ_BITS-1:0] found_c;
  logic [RQ_BITS-1:0] found_r;
  logic has_q;
  logic has_c;
  logic has_r;
  logic [QP_BITS-1:0] free_q;
  logic [CQ_BITS-1:0] free_c;
  logic [RQ_BITS-1:0] free_r;
  logic [23:0] new_q;
  logic [23:0] new_c;
  logic [23:0] new_r;
  logic [QP_BITS-1:0] room_q;
  logic has_room_q;

  assign qp_secret = seed;
  assign cq_secret = {seed[15:0], seed[63:16]} ^ 64'h6a09_e667_f3bc_c908;
  assign rq_secret = {seed[31:0], seed[63:32]} ^ 64'hbb67_ae85_84ca_a73b;
  assign key_secret = {seed[47:0], seed[63:48]} ^ 64'h3c6e_f372_fe94_f82b;

  assign found_q = QP_BITS'(plain_of({4'd0, find[19:0]}, qp_secret, 1'b1));
  assign found_c = CQ_BITS'(plain_of(find, cq_secret, 1'b0));
  assign found_r = RQ_BITS'(plain_of({4'd0, find[19:0]}, rq_secret, 1'b1));
  assign has_q = qp_valid[found_q] && qp_number[found_q] == find;
  assign has_c = cq_valid[found_c] && cq_number[found_c] == find;
  assign has_r = rq_valid[found_r] && rq_number[found_r] == find;
  assign room_q = QP_BITS'(plain_of({4'd0, room.qpn[19:0]}, qp_secret, 1'b1));
  assign has_room_q = qp_valid[room_q] && qp_number[room_q] == room.qpn;

  always_comb begin
    free_q = '0;
    free_c = '0;
    free_r = '0;
    for (int i = Qps - 1; i >= 0; i--) if (!qp_valid[i]) free_q = QP_BITS'(i);
    for (int i = Cqs - 1; i >= 0; i--) if (!cq_valid[i]) free_c = CQ_BITS'(i);
    for (int i = Rqs - 1; i >= 0; i--) if (!rq_valid[i]) free_r = RQ_BITS'(i);
  end
  assign new_q = {Window, 20'(number_of({4'd0, qp_uses[free_q], free_q}, qp_secret, 1'b1))};
  assign new_c = number_of({cq_uses[free_c], free_c}, cq_secret, 1'b0);
  assign new_r = {Window, 20'(number_of({4'd0, rq_uses[free_r], free_r}, rq_secret, 1'b1))};

  // Those whose turn it is: of queue pairs the next behind the last one.
  logic [QP_BITS-1:0] next_q;
  logic [QP_BITS-1:0] lost_q;
  logic [QP_BITS-1:0] any_q;
  logic [CQ_BITS-1:0] next_c;
  logic [3:0] any_gid;

  always_comb begin
    next_q = '0;
    lost_q = '0;
    any_q = '0;
    next_c = '0;
    any_gid = '0;
    for (int i = Qps - 1; i >= 0; i--) begin
      if (qp_look[QP_BITS'(i)+last_q+1'b1]) next_q = QP_BITS'(i) + last_q + 1'b1;
      if (qp_lost[i]) lost_q = QP_BITS'(i);
      if (qp_valid[i]) any_q = QP_BITS'(i);
    end
    for (int i = Cqs - 1; i >= 0; i--) if (cq_look[i]) next_c = CQ_BITS'(i);
    for (int i = 15; i >= 0; i--) if (gid_valid[i]) any_gid = 4'(i);
  end

  // ---- Keys

  logic [31:0] key_key;
  logic [31:0] key_pdn;
  logic [63:0] key_va;
  logic [31:0] key_length;
  logic [31:0] key_right;
  logic key_open;
  logic [63:0] key_iova;
  logic key_there;
  logic key_made;
  logic key_room;
  logic [31:0] key_new;
  admin_create_key_t a_key;
  admin_modify_key_t a_rekey;
  logic is_rekey;

  assign a_key = admin_create_key_t'(a_block[0]);
  assign a_rekey = admin_modify_key_t'(a_block[0]);
  assign is_rekey = a_rekey.opcode == ADMIN_OPCODE_MODIFY_KEY;

  // Whether there can be such a region.
  admin_status_t a_region_status;
  logic [64:0] a_region_end;
  logic [64:0] a_iova_end;
  assign a_region_end = 65'((a_key.access & KEY_ACCESS_ZERO_BASED) != '0 ? '0 : a_key.va) + 65'(a_key.length);
  assign a_iova_end   = 65'(a_key.iova) + 65'(a_key.length);
  always_comb begin
    a_region_status = ADMIN_STATUS_SUCCESS;
    if (a_key.length != '0 && a_iova_end > 65'd1 << 48) a_region_status = ADMIN_STATUS_BAD_ADDRESS;
    if (a_region_end[64]) a_region_status = ADMIN_STATUS_INVALID;
    if ((a_key.access & (KEY_ACCESS_REMOTE_WRITE | KEY_ACCESS_REMOTE_ATOMIC)) != '0 &&
        (a_key.access & KEY_ACCESS_LOCAL_WRITE) == '0)
      a_region_status = ADMIN_STATUS_INVALID;
  end

  // Both commands have the memory in the same places.
  balboa_keys #(
      .Keys(Keys)
  ) keys (
      .clk,
      .rst_n,
      .secret(key_secret),
      .key(key_key),
      .pdn(key_pdn),
      .va(key_va),
      .length(key_length),
      .right(key_right),
      .is_open(key_open),
      .iova(key_iova),
      .is_there(key_there),
      .makes(state == ADMIN_KEY && a_key.opcode == ADMIN_OPCODE_CREATE_KEY),
      .new_va(a_key.va),
      .new_length(a_key.length),
      .new_iova(a_key.iova),
      .new_pdn(a_key.pdn),
      .new_access(a_key.access),
      .made(key_made),
      .has_room(key_room),
      .new_key(key_new),
      .changes(state == ADMIN_KEY && is_rekey && a_region_status == ADMIN_STATUS_SUCCESS),
      .ends(state == ADMIN_KEY && a_key.opcode == ADMIN_OPCODE_DESTROY_KEY),
      .clears(state == STOP_END)
  );

  // ---- Host memory

  logic [6:0] recv_bytes;
  logic pack_ready;
  logic pack_valid;
  logic pack_out_ready;
  port_beat_t pack_out;
  logic beats_valid;
  port_beat_t beats_out;
  logic place_out_valid;
  logic place_out_ready;
  port_beat_t place_out;
  logic drops;

  assign sq_rd_valid = state == READ_ASK || state == FETCH_ASK;
  assign sq_rd = '{
          stream: '0,
          length: state == FETCH_ASK ? 28'(t_piece) : 28'd64,
          address: io_address[47:0]
      };
  assign sq_wr_valid = state == WRITE_ASK || state == PLACE_ASK;
  assign sq_wr = '{
          stream: '0,
          length: state == PLACE_ASK ? 28'(t.length) : 28'd64,
          address: io_address[47:0]
      };
  assign recv_bytes = t_beats_left >= 13'd64 ? 7'd64 : t_beats_left[6:0];
  assign recv_ready = state == READ_TAKE || (state == FETCH_DATA && pack_ready);
  assign send_valid = state == WRITE_GIVE || (state == PLACE_DATA && place_out_valid);
  assign send = state == WRITE_GIVE ? '{last: 1'b1, keep: '1, data: io_block} :
      '{last: place_out.last, keep: keep_of(28'(place_out.bytes)), data: place_out.data};
  assign place_out_ready = state == PLACE_DRAIN || (state == PLACE_DATA && send_ready);
  assign notify_valid = state == NOTIFY;
  assign notify = '0;
  assign drops = state == FETCH;

  // What is fetched is kept until all of it is there: a fault may still refuse it.
  balboa_pack pack (
      .clk,
      .rst_n(rst_n && !drops),
      .in_valid(state == FETCH_DATA && recv_valid),
      .in_ready(pack_ready),
      .in_data(recv.data),
      .in_bytes(recv_bytes),
      .in_last(recv.last && t_left == '0),
      .out_valid(pack_valid),
      .out_ready(pack_out_ready),
      .out(pack_out)
  );
  balboa_fifo #(
      .Width($bits(port_beat_t)),
      .Depth(64)
  ) fetched_beats (
      .clk,
      .rst_n(rst_n && !drops),
      .in_valid(pack_valid),
      .in_ready(pack_out_ready),
      .in_data(pack_out),
      .out_valid(beats_valid),
      .out_ready(state == FETCH_GIVE && fetched_beat_ready),
      .out_data(beats_out)
  );
  balboa_fifo #(
      .Width($bits(port_beat_t)),
      .Depth(4)
  ) place_beats (
      .clk,
      .rst_n,
      .in_valid(place_beat_valid),
      .in_ready(place_beat_ready),
      .in_data(place_beat),
      .out_valid(place_out_valid),
      .out_ready(place_out_ready),
      .out_data(place_out)
  );
  assign fetched_beat_valid = state == FETCH_GIVE && beats_valid;
  assign fetched_beat = beats_out;

  // ---- Port N

  logic takes_done;
  logic takes_check;
  logic takes_fetch;
  logic takes_place;
  logic takes_claim;
  logic takes_report;
  logic is_idle;

  // One of them in an idle cycle. Reports wait where a command is under way.
  assign is_idle = state == IDLE;
  assign takes_done = is_idle && waits && command_done_valid;
  assign takes_check = is_idle && check_valid && !takes_done;
  assign takes_fetch = is_idle && fetch_valid && !takes_done && !check_valid;
  assign takes_place = is_idle && place_valid && !takes_done && !check_valid && !fetch_valid;
  assign takes_claim = is_idle && claim_valid && !takes_done && !check_valid && !fetch_valid && !place_valid;
  assign takes_report = is_idle && report_valid && !waits &&
      !(check_valid || fetch_valid || place_valid || claim_valid);
  assign command_done_ready = is_idle && waits;
  assign check_ready = takes_check;
  assign fetch_ready = takes_fetch;
  assign place_ready = takes_place;
  assign claim_ready = takes_claim;
  assign report_ready = takes_report;
  // A command that is done makes a queue pair, or takes its room back, first.
  assign room_ready = !takes_done && state != ADMIN_QP_MADE && state != ADMIN_MODIFIED;

  assign submit_valid = state == PUMP_SENT;
  assign command_valid = state == COMMAND;
  assign checked_valid = state == CHECKED;
  assign checked = '{verdict: t_verdict, tag: k.tag};
  assign fetched_valid = state == FETCH_ANSWER;
  assign fetched = '{verdict: t_verdict, tag: t.tag};
  assign placed_valid = state == PLACE_ANSWER;
  assign placed = '{verdict: t_verdict, tag: t.tag};
  assign claimed_valid = state == ANSWER;
  assign claimed = '{
          capacity: '0,
          receive: '0,
          verdict: PORT_VERDICT_INVALID_REQUEST,
          tag: t.tag
      };

  // ---- What is looked at

  admin_header_t a_header;
  admin_create_cq_t a_cq;
  admin_create_rq_t a_create_rq;
  admin_create_qp_t a_qp;
  admin_modify_qp_t a_change;
  admin_destroy_t a_named;
  admin_set_gid_t a_gid;
  admin_set_link_t a_link;
  qp_attributes_t a_attributes;
  qp_state_t a_to;
  admin_status_t a_change_status;
  logic a_sound;
  wqe_send_header_t w_header;
  logic [2559:0] w_all;
  wqe_sge_t w_sge;
  logic [31:0] sq_left;
  logic [31:0] sq_offset;
  message_t oldest;
  logic [31:0] cq_filled;
  logic [31:0] ev_filled;
  admin_completion_t a_completion;
  doorbell_completion_record_t a_record;
  doorbell_arm_word_t arm;
  logic [29:0] armed_behind;
  logic [29:0] arm_behind;
  logic arms_any;
  message_t t_message;
  wqe_sge_t t_sge;
  logic [31:0] ring_bytes;
  logic [31:0] inline_start;
  logic [31:0] inline_to_end;
  logic [31:0] sge_left;
  logic [35:0] t_end;

  assign a_header = admin_header_t'(a_block[0]);
  assign a_cq = admin_create_cq_t'(a_block[0]);
  assign a_create_rq = admin_create_rq_t'(a_block[0]);
  assign a_qp = admin_create_qp_t'(a_block[0]);
  assign a_change = admin_modify_qp_t'(a_block[0]);
  assign a_named = admin_destroy_t'(a_block[0]);
  assign a_gid = admin_set_gid_t'(a_block[0]);
  assign a_link = admin_set_link_t'(a_block[0]);
  assign a_attributes = qp_attributes_t'({a_block[2], a_block[1]});
  assign a_to = (a_attributes.mask & QP_ATTRIBUTE_MASK_STATE) != '0 ? a_attributes.state : qp_state[q];
  assign a_change_status = change_status(qp_state[q], a_to, a_attributes.current_state, a_attributes.mask);

  // The doorbell page of a client.
  function automatic logic [3:0] page_of(input logic [7:0] client);
    return client > 8'd15 ? WINDOW_RELAY_PAGE[3:0] : client[3:0];
  endfunction
  // Whether a ring, or a queue's memory, can be there.
  function automatic logic is_place(input logic [63:0] address);
    return address[5:0] == '0 && address[63:48] == '0;
  endfunction

  // Whether the values of the attributes that count can be.
  function automatic logic counts(input logic [31:0] mask, input logic [31:0] attribute);
    return (mask & attribute) != '0;
  endfunction
  always_comb begin
    qp_attributes_t a;
    logic [31:0] m;
    a = a_attributes;
    m = a.mask;
    a_sound = !(counts(m, QP_ATTRIBUTE_MASK_PKEY_INDEX) && a.pkey_index != '0) &&
        !(counts(m, QP_ATTRIBUTE_MASK_PORT) && a.port != 8'd1) &&
        !(counts(m, QP_ATTRIBUTE_MASK_ACCESS) && (a.access & ~ACCESSES) != '0) &&
        !(counts(m, QP_ATTRIBUTE_MASK_AV) && (a.sgid_index > 8'd15 || !gid_valid[a.sgid_index[3:0]] ||
            a.dgid == '0 || a.flow_label[31:20] != '0 || a.sl > 8'd15)) &&
        !(counts(m, QP_ATTRIBUTE_MASK_PATH_MTU) && (a.path_mtu == '0 || a.path_mtu > 8'd5)) &&
        !(counts(m, QP_ATTRIBUTE_MASK_TIMEOUT) && a.timeout > 8'd31) &&
        !(counts(m, QP_ATTRIBUTE_MASK_RETRY_COUNT) && a.retry_count > 8'd7) &&
        !(counts(m, QP_ATTRIBUTE_MASK_RNR_RETRY) && a.rnr_retry > 8'd7) &&
        !(counts(m, QP_ATTRIBUTE_MASK_RQ_PSN) && a.rq_psn[31:24] != '0) &&
        !(counts(m, QP_ATTRIBUTE_MASK_SQ_PSN) && a.sq_psn[31:24] != '0) &&
        !(counts(m, QP_ATTRIBUTE_MASK_DEST_QPN) && a.dest_qpn[31:24] != '0) &&
        !(counts(m, QP_ATTRIBUTE_MASK_MIN_RNR_TIMER) && a.min_rnr_timer > 8'd31) &&
        !(counts(m, QP_ATTRIBUTE_MASK_MAX_RD_ATOMIC) && a.max_rd_atomic > 8'd16) &&
        !(counts(m, QP_ATTRIBUTE_MASK_MAX_DEST_RD_ATOMIC) && a.max_dest_rd_atomic > 8'd16);
  end

  assign w_header = wqe_send_header_t'(w_block[0]);
  assign w_all = {w_block[4], w_block[3], w_block[2], w_block[1], w_block[0]};
  assign w_sge = w_all[12'd256+{w_element[3:0], 7'd0}+:128];
  assign sq_left = (32'd1 << qp_log2[q]) - 32'd1;
  assign sq_offset = (qp_fetch[q] & sq_left) << 6;
  assign oldest = messages[{q, qp_oldest[q][MESSAGE_BITS-1:0]}];
  assign cq_filled = cq_producer[e_cq] - cq_consumer[e_cq];
  assign ev_filled = ev_producer - ev_consumer;
  assign a_record = doorbell_completion_record_t'(io_block);
  assign arm = doorbell_arm_word_t'(a_record.arm);
  assign arm_behind = arm.arm_sequence - cq_sequence[c];
  assign armed_behind = a_record.armed_for_any[29:0] - cq_sequence[c];
  // Of an arming for any completion that was not seen: behind the last one seen, up to this one.
  assign arms_any = armed_behind != '0 &&
      armed_behind <= arm_behind;
  logic is_for_any;
  logic fires;
  assign is_for_any = arm.kind == DOORBELL_ARM_CODE_ANY[1:0] || cq_armed[c] == DOORBELL_ARM_CODE_ANY[1:0] || arms_any;
  // An entry of the kind waited for is there already.
  assign fires = is_for_any ? cq_producer[c] != arm.consumer :
      cq_has_solicited[c] && $signed(cq_solicited_end[c] - arm.consumer) > 0;
  assign t_message = messages[{q, t.number[MESSAGE_BITS-1:0]}];
  assign t_sge = elements[{q, t.number[MESSAGE_BITS-1:0], t_element[3:0]}];
  assign ring_bytes = 32'd64 << qp_log2[q];
  assign inline_start = ((t_message.index << 6) + WQE_SEND_PAYLOAD_OFFSET + t_skip) & (ring_bytes - 32'd1);
  assign inline_to_end = ring_bytes - inline_start;
  assign sge_left = t_sge.length - t_skip;
  assign t_end = 36'(t.offset) + 36'(t.length);

  always_comb begin
    a_completion            = '0;
    a_completion.tag        = a_header.tag;
    a_completion.opcode     = a_header.opcode;
    a_completion.status     = a_status;
    a_completion.result     = a_status == ADMIN_STATUS_SUCCESS ? a_result : '0;
    a_completion.generation = a_status == ADMIN_STATUS_SUCCESS ? a_generation : '0;
    a_completion.phase      = 8'(expected_phase(admin_producer, ac_log2));
  end

  // The completion that an operation has.
  function automatic cqe_opcode_t completed_as(input wqe_send_opcode_t opcode);
    case (opcode)
      WQE_SEND_OPCODE_WRITE, WQE_SEND_OPCODE_WRITE_IMM: return CQE_OPCODE_WRITE;
      WQE_SEND_OPCODE_READ:                             return CQE_OPCODE_READ;
      WQE_SEND_OPCODE_COMPARE_SWAP:                     return CQE_OPCODE_COMPARE_SWAP;
      WQE_SEND_OPCODE_FETCH_ADD:                        return CQE_OPCODE_FETCH_ADD;
      WQE_SEND_OPCODE_LOCAL_INVALIDATE:                 return CQE_OPCODE_LOCAL_INVALIDATE;
      WQE_SEND_OPCODE_BIND_WINDOW:                      return CQE_OPCODE_BIND_WINDOW;
      default:                                          return CQE_OPCODE_SEND;
    endcase
  endfunction

  // A completion of a queue pair's send queue.
  function automatic cqe_t send_cqe(input logic [23:0] qpn, input logic [7:0] generation,
                                    input logic [31:0] index, input cqe_opcode_t opcode,
                                    input cqe_status_t status_, input logic [31:0] length);
    cqe_t entry;
    entry            = '0;
    entry.qpn        = 32'(qpn);
    entry.generation = generation;
    entry.wqe_index  = index;
    entry.opcode     = opcode;
    entry.status     = status_;
    entry.byte_count = length;
    return entry;
  endfunction

  // Whether the entry whose header was read can be one, and the blocks that it takes; nobody can tell where the one behind
  // nonsense begins.
  logic w_is_sound;
  logic [31:0] w_takes;
  assign w_is_sound = w_header.blocks != '0 && w_header.blocks <= 8'd5 && 32'(w_header.blocks) <= w_posted &&
      w_posted <= sq_left + 32'd1;
  assign w_takes = w_is_sound ? 32'(w_header.blocks) : w_posted;

  // ---- Whatever happens by itself

  always_ff @(posedge clk) begin
    if (!rst_n) timestamp <= '0;
    else timestamp <= timestamp + 64'(NANOSECONDS);
  end

  // ---- One thing after the other

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state        <= IDLE;
      waits        <= 1'b0;
      is_enabled   <= 1'b0;
      fatal_code   <= '0;
      wants_enable <= 1'b0;
      wants_reset  <= 1'b0;
      admin_rung   <= 1'b0;
      ev_overflow  <= 1'b0;
      raised       <= 1'b0;
      qp_valid     <= '0;
      qp_look      <= '0;
      qp_lost      <= '0;
      qp_stopped   <= '0;
      cq_valid     <= '0;
      cq_look      <= '0;
      cq_overrun   <= '0;
      rq_valid     <= '0;
      rq_used      <= '0;
      gid_valid    <= '0;
      last_q       <= '0;
    end else begin
      // Orders that come at any time.
      if (enables) wants_enable <= 1'b1;
      if (resets) wants_reset <= 1'b1;
      if (admin_rings && is_enabled) begin
        admin_rung <= 1'b1;
        admin_end  <= admin_told;
      end
      if (consumes && consumed.ring == '0) ev_consumer <= consumed.consumer;
      if (clears_overflow) ev_overflow <= 1'b0;
      if (fault_valid) io_failed <= 1'b1;
      if (rings) begin
        for (int i = 0; i < Qps; i++) begin
          if (rung_kind == DOORBELL_QUEUE_CODE_SEND && qp_valid[i] && qp_number[i][6:0] == rung_place &&
              page_of(
                  qp_page[i]
              ) == rung_page)
            qp_look[i] <= 1'b1;
        end
        for (int i = 0; i < Cqs; i++) begin
          if (rung_kind == DOORBELL_QUEUE_CODE_COMPLETION && cq_valid[i] && cq_number[i][6:0] == rung_place &&
              page_of(
                  cq_page[i]
              ) == rung_page)
            cq_look[i] <= 1'b1;
        end
      end
      if (room_valid && room_ready && has_room_q) begin
        qp_room[room_q] <= qp_room[room_q] + room.messages;
        qp_look[room_q] <= 1'b1;
      end

      case (state)
        IDLE: begin
          if (takes_done) begin
            done  <= command_done;
            waits <= 1'b0;
            state <= c_return;
          end else if (takes_check) begin
            k     <= check;
            find  <= check.qpn;
            state <= CHECK;
          end else if (takes_fetch) begin
            t     <= fetch;
            find  <= fetch.qpn;
            state <= FETCH;
          end else if (takes_place) begin
            t     <= place;
            find  <= place.qpn;
            state <= PLACE;
          end else if (takes_claim) begin
            t.tag <= claim.tag;
            state <= ANSWER;
          end else if (!waits) begin
            if (takes_report) begin
              r     <= report;
              find  <= report.qpn;
              state <= REPORT;
            end else if (wants_reset) begin
              wants_enable <= 1'b0;
              state        <= STOP_QPS;
            end else if (wants_enable) begin
              wants_enable <= 1'b0;
              if (!is_enabled && fatal_code == '0) state <= ENABLE_CHECK;
            end else if (raised) begin
              raised <= 1'b0;
              state  <= NOTIFY;
            end else if (is_enabled) begin
              if (qp_lost != '0) begin
                q               <= lost_q;
                qp_lost[lost_q] <= 1'b0;
                state           <= FAIL_TOLD;
              end else if (cq_look != '0) begin
                c               <= next_c;
                cq_look[next_c] <= 1'b0;
                state           <= ARM;
              end else if (qp_look != '0) begin
                q               <= next_q;
                last_q          <= next_q;
                qp_look[next_q] <= 1'b0;
                state           <= PUMP;
              end else if (admin_rung) begin
                state <= ADMIN;
              end
            end
          end
        end

        // ---- A block of host memory
        READ_ASK: begin
          io_failed <= 1'b0;
          if (sq_rd_ready) state <= READ_TAKE;
        end
        READ_TAKE: begin
          if (recv_valid) begin
            io_block <= recv.data;
            state    <= io_return;
          end else if (io_failed) begin
            state <= io_return;
          end
        end
        WRITE_ASK: begin
          io_failed <= 1'b0;
          if (sq_wr_ready) state <= WRITE_GIVE;
        end
        WRITE_GIVE: if (send_ready) state <= WRITE_END;
        WRITE_END:  if (cq_wr_valid || io_failed) state <= io_return;

        // ---- A completion in e_cq
        CQE_BEGIN: begin
          if (cq_overrun[e_cq]) begin
            qp_lost[e_qp] <= 1'b1;
            state         <= e_return;
          end else if (cq_filled >= 32'd1 << cq_log2[e_cq]) begin
            io_address <= cq_ring[e_cq];
            io_return  <= CQE_ROOM;
            state      <= READ_ASK;
          end else begin
            state <= CQE_WRITE;
          end
        end
        CQE_ROOM: begin
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end else begin
            cq_consumer[e_cq] <= io_block[31:0];
            if (cq_producer[e_cq] - io_block[31:0] >= 32'd1 << cq_log2[e_cq]) begin
              cq_overrun[e_cq] <= 1'b1;
              qp_lost[e_qp]    <= 1'b1;
              v_event          <= '0;
              v_event.kind     <= EVENT_TYPE_CQ_ERROR;
              v_event.number   <= 32'(cq_number[e_cq]);
              v_return         <= e_return;
              state            <= EVENT_BEGIN;
            end else begin
              state <= CQE_WRITE;
            end
          end
        end
        CQE_WRITE: begin
          io_block            <= e_cqe;
          io_block[255:192]   <= timestamp;
          io_block[511:504]   <= 8'(expected_phase(cq_producer[e_cq], cq_log2[e_cq]));
          io_address          <= cq_ring[e_cq] + 64'd64 +
              {32'd0, (cq_producer[e_cq] & ((32'd1 << cq_log2[e_cq]) - 32'd1)) << 6};
          io_return           <= CQE_WRITTEN;
          state               <= WRITE_ASK;
        end
        CQE_WRITTEN: begin
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end else begin
            cq_producer[e_cq] <= cq_producer[e_cq] + 32'd1;
            state             <= e_return;
            if (e_cqe.status != CQE_STATUS_SUCCESS || (e_cqe.flags & CQE_FLAGS_SOLICITED) != '0) begin
              cq_solicited_end[e_cq] <= cq_producer[e_cq] + 32'd1;
              cq_has_solicited[e_cq] <= 1'b1;
            end
            if (cq_armed[e_cq] == DOORBELL_ARM_CODE_ANY[1:0] ||
                (cq_armed[e_cq] == DOORBELL_ARM_CODE_SOLICITED[1:0] &&
                 (e_cqe.status != CQE_STATUS_SUCCESS || (e_cqe.flags & CQE_FLAGS_SOLICITED) != '0))) begin
              cq_armed[e_cq] <= DOORBELL_ARM_CODE_NEVER[1:0];
              v_event        <= '0;
              v_event.kind   <= EVENT_TYPE_COMPLETION;
              v_event.number <= 32'(cq_number[e_cq]);
              v_event.data   <= 64'(cq_sequence[e_cq]);
              v_return       <= e_return;
              state          <= EVENT_BEGIN;
            end
          end
        end

        // ---- An event
        EVENT_BEGIN: begin
          raised <= 1'b1;
          if (ev_filled >= 32'd1 << ev_log2) begin
            ev_overflow <= 1'b1;
            state       <= v_return;
          end else begin
            io_block          <= v_event;
            io_block[191:128] <= timestamp;
            io_block[511:504] <= 8'(expected_phase(ev_producer, ev_log2));
            io_address        <= ev_base + {32'd0, (ev_producer & ((32'd1 << ev_log2) - 32'd1)) << 6};
            io_return         <= EVENT_WRITTEN;
            state             <= WRITE_ASK;
          end
        end
        EVENT_WRITTEN: begin
          ev_producer <= ev_producer + 32'd1;
          if (io_failed && fatal_code == '0) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL_END;
          end else begin
            state <= v_return;
          end
        end
        NOTIFY:  if (notify_ready) state <= IDLE;
        COMMAND: begin
          if (command_ready) begin
            waits <= 1'b1;
            state <= IDLE;
          end
        end

        // ---- Starting: each ring is where it can be, and its first block is there
        ENABLE_CHECK: begin
          sq_base   <= r_admin_sq_base;
          sq_log2   <= r_admin_sq_size[4:0];
          ac_base   <= r_admin_cq_base;
          ac_log2   <= r_admin_cq_size[4:0];
          ev_base   <= r_event_base;
          ev_log2   <= r_event_size[4:0];
          io_return <= ENABLE_SQ;
          if (r_admin_sq_size > 64'(WINDOW_MAX_LOG2_ADMIN) || r_admin_cq_size > 64'(WINDOW_MAX_LOG2_ADMIN) ||
              r_event_size > 64'(WINDOW_MAX_LOG2_EVENTS) || r_event_rings > 64'd1 ||
              !is_place(r_admin_sq_base) || !is_place(r_admin_cq_base) || !is_place(r_event_base)) begin
            state <= IDLE;
          end else begin
            io_address <= r_admin_sq_base;
            state      <= READ_ASK;
          end
        end
        ENABLE_SQ: begin
          io_address <= ac_base;
          io_return  <= ENABLE_CQ;
          state      <= io_failed ? IDLE : READ_ASK;
        end
        ENABLE_CQ: begin
          io_address <= ev_base;
          io_return  <= ENABLED;
          state      <= io_failed ? IDLE : READ_ASK;
        end
        ENABLED: begin
          is_enabled     <= !io_failed;
          admin_consumer <= '0;
          admin_producer <= '0;
          ev_producer    <= '0;
          ev_consumer    <= '0;
          state          <= IDLE;
        end

        // ---- Stopping: the transport forgets all first
        STOP_QPS: begin
          command           <= '0;
          command.operation <= PORT_COMMAND_DESTROY;
          command.qpn       <= qp_number[any_q];
          c_return          <= STOP_QPS;
          if (qp_valid == '0) begin
            state <= STOP_GIDS;
          end else begin
            qp_valid[any_q] <= 1'b0;
            qp_uses[any_q]  <= qp_uses[any_q] + 1'b1;
            state           <= COMMAND;
          end
        end
        STOP_GIDS: begin
          command                       <= '0;
          command.operation             <= PORT_COMMAND_CLEAR_GID;
          command.attributes.sgid_index <= 8'(any_gid);
          c_return                      <= STOP_GIDS;
          if (gid_valid == '0) begin
            state <= STOP_END;
          end else begin
            gid_valid[any_gid] <= 1'b0;
            state              <= COMMAND;
          end
        end
        STOP_END: begin
          for (int i = 0; i < Cqs; i++) if (cq_valid[i]) cq_uses[i] <= cq_uses[i] + 1'b1;
          for (int i = 0; i < Rqs; i++) if (rq_valid[i]) rq_uses[i] <= rq_uses[i] + 1'b1;
          qp_look     <= '0;
          qp_lost     <= '0;
          qp_stopped  <= '0;
          cq_valid    <= '0;
          cq_look     <= '0;
          cq_overrun  <= '0;
          rq_valid    <= '0;
          rq_used     <= '0;
          is_enabled  <= 1'b0;
          admin_rung  <= 1'b0;
          wants_reset <= 1'b0;
          // After a fatal stop the driver is told, and the code stays.
          raised      <= !wants_reset;
          if (wants_reset) begin
            fatal_code  <= '0;
            ev_overflow <= 1'b0;
          end
          state       <= IDLE;
        end
        FATAL: begin
          v_event      <= '0;
          v_event.kind <= EVENT_TYPE_FATAL;
          v_event.code <= fatal_code[7:0];
          v_return     <= FATAL_END;
          state        <= EVENT_BEGIN;
        end
        FATAL_END: state <= STOP_QPS;

        // ---- The driver's commands
        ADMIN: begin
          a_read <= '0;
          a_count <= 3'd1;
          a_status <= ADMIN_STATUS_SUCCESS;
          a_result <= '0;
          a_generation <= '0;
          io_address <= sq_base + {32'd0, (admin_consumer & ((32'd1 << sq_log2) - 32'd1)) << 6};
          io_return <= ADMIN_FIRST;
          if (admin_end == admin_consumer || admin_end - admin_consumer > 32'd1 << sq_log2) begin
            // Unless another doorbell comes in this very cycle.
            admin_rung <= admin_rings;
            state      <= IDLE;
          end else begin
            state <= READ_ASK;
          end
        end
        ADMIN_FIRST: begin
          a_block[0] <= io_block;
          a_read     <= 3'd1;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end else if (io_block[15:8] == '0 || io_block[15:8] > 8'd4 || 32'(io_block[15:8]) > 32'd1 << sq_log2) begin
            admin_consumer <= admin_consumer + 32'd1;
            a_status       <= ADMIN_STATUS_INVALID;
            state          <= ADMIN_ANSWER;
          end else if (32'(io_block[15:8]) > admin_end - admin_consumer) begin
            // The rest comes with another doorbell.
            // Unless another doorbell comes in this very cycle.
            admin_rung <= admin_rings;
            state      <= IDLE;
          end else begin
            a_count <= io_block[10:8];
            state   <= ADMIN_MORE;
          end
        end
        ADMIN_MORE: begin
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end else begin
            if (a_read == 3'd2) a_block[1] <= io_block;
            if (a_read == 3'd3) a_block[2] <= io_block;
            // A fourth block says nothing that is used.
            if (a_read < a_count && a_read < 3'd3) begin
              a_read <= a_read + 3'd1;
              io_address <= sq_base + {32'd0, ((admin_consumer + 32'(a_read)) & ((32'd1 << sq_log2) - 32'd1)) << 6};
              io_return <= ADMIN_MORE;
              state <= READ_ASK;
            end else begin
              admin_consumer <= admin_consumer + 32'(a_count);
              state          <= ADMIN_RUN;
            end
          end
        end
        ADMIN_RUN: begin
          // A status that is given here ends the command.
          a_status <= ADMIN_STATUS_INVALID;
          state    <= ADMIN_ANSWER;
          command  <= '0;
          case (a_header.opcode)
            ADMIN_OPCODE_CREATE_CQ: begin
              io_address <= a_cq.ring;
              if (a_cq.log2_entries <= 8'(LOG2_CQ) && a_cq.page != '0 && a_cq.vector == '0 && a_cq.ring[5:0] == '0)
                state <= ADMIN_PROBE;
            end
            ADMIN_OPCODE_CREATE_RQ: begin
              io_address <= a_create_rq.ring;
              if (a_create_rq.kind != ADMIN_RQ_KIND_PRIVATE) a_status <= ADMIN_STATUS_UNSUPPORTED;
              else if (a_create_rq.log2_entries <= 8'(LOG2_RQ) && a_create_rq.log2_stride <= 8'd3 &&
                       a_create_rq.page != '0 && a_create_rq.ring[5:0] == '0)
                state <= ADMIN_PROBE;
            end
            ADMIN_OPCODE_CREATE_QP: begin
              find <= a_qp.send_cqn[23:0];
              if (a_qp.kind != QP_TYPE_RC) a_status <= ADMIN_STATUS_UNSUPPORTED;
              else if (a_qp.log2_sq_blocks <= 8'(LOG2_SQ) && a_qp.page != '0) state <= ADMIN_QP_SEND_CQ;
            end
            ADMIN_OPCODE_MODIFY_QP: begin
              find <= a_change.qpn[23:0];
              if (a_count >= 3'd3) state <= ADMIN_MODIFY;
            end
            ADMIN_OPCODE_QUERY_QP, ADMIN_OPCODE_DESTROY_QP, ADMIN_OPCODE_DESTROY_CQ, ADMIN_OPCODE_DESTROY_RQ: begin
              find  <= a_named.number[23:0];
              state <= ADMIN_DESTROYED;
            end
            ADMIN_OPCODE_CREATE_KEY, ADMIN_OPCODE_MODIFY_KEY, ADMIN_OPCODE_DESTROY_KEY: begin
              key_key <= a_key.opcode == ADMIN_OPCODE_DESTROY_KEY ? a_named.number : a_rekey.key;
              if (a_key.opcode == ADMIN_OPCODE_DESTROY_KEY) state <= ADMIN_KEY;
              else if (!is_rekey && a_key.kind != ADMIN_KEY_KIND_REGION) a_status <= ADMIN_STATUS_UNSUPPORTED;
              else if (!is_rekey && a_region_status != ADMIN_STATUS_SUCCESS) a_status <= a_region_status;
              else state <= ADMIN_KEY;
            end
            ADMIN_OPCODE_SET_GID: begin
              command.operation             <= a_gid.valid == 8'd1 ? PORT_COMMAND_SET_GID : PORT_COMMAND_CLEAR_GID;
              command.attributes.sgid_index <= a_gid.index;
              command.attributes.dgid       <= a_gid.gid;
              command.number                <= a_gid.vlan;
              c_return                      <= ADMIN_GID;
              if (a_gid.index < 8'd16 && !(a_gid.valid == 8'd1 && a_gid.vlan > ADMIN_MAX_VLAN[15:0]))
                state <= COMMAND;
            end
            ADMIN_OPCODE_SET_LINK: begin
              command.operation <= PORT_COMMAND_SET_LINK;
              command.number    <= 16'(a_link.up == 8'd1);
              c_return          <= ADMIN_GID;
              state             <= COMMAND;
            end
            ADMIN_OPCODE_QUERY_PORT, ADMIN_OPCODE_QUERY_COUNTERS: begin
              a_counter         <= '0;
              command.operation <= a_header.opcode == ADMIN_OPCODE_QUERY_PORT ? PORT_COMMAND_QUERY_PORT :
                  PORT_COMMAND_QUERY_COUNTERS;
              c_return <= ADMIN_BLOCKS;
              state    <= COMMAND;
            end
            default: a_status <= ADMIN_STATUS_UNSUPPORTED;
          endcase
        end
        // The memory of a queue: its record tells whether it is there, and reads 0.
        ADMIN_PROBE: begin
          io_return <= ADMIN_DRAW;
          a_status  <= ADMIN_STATUS_BAD_ADDRESS;
          state     <= io_address[63:48] == '0 ? READ_ASK : ADMIN_ANSWER;
        end
        ADMIN_DRAW: begin
          state <= ADMIN_ANSWER;
          if (io_failed) begin
            a_status <= ADMIN_STATUS_BAD_ADDRESS;
          end else begin
            case (a_header.opcode)
              ADMIN_OPCODE_CREATE_CQ: begin
                a_status <= cq_valid == '1 ? ADMIN_STATUS_NO_RESOURCES : ADMIN_STATUS_SUCCESS;
                a_result <= 32'(new_c);
                if (cq_valid != '1 && is_reserved(new_c, 1'b0)) begin
                  cq_uses[free_c] <= cq_uses[free_c] + 1'b1;
                  state           <= ADMIN_DRAW;
                end else if (cq_valid != '1) begin
                  cq_valid[free_c]         <= 1'b1;
                  cq_number[free_c]        <= new_c;
                  cq_page[free_c]          <= a_cq.page;
                  cq_ring[free_c]          <= a_cq.ring;
                  cq_log2[free_c]          <= a_cq.log2_entries[4:0];
                  cq_producer[free_c]      <= '0;
                  cq_consumer[free_c]      <= '0;
                  cq_armed[free_c]         <= DOORBELL_ARM_CODE_NEVER[1:0];
                  cq_sequence[free_c]      <= '0;
                  cq_has_solicited[free_c] <= 1'b0;
                  cq_overrun[free_c]       <= 1'b0;
                  cq_users[free_c]         <= '0;
                end
              end
              ADMIN_OPCODE_CREATE_RQ: begin
                a_status <= rq_valid == '1 ? ADMIN_STATUS_NO_RESOURCES : ADMIN_STATUS_SUCCESS;
                a_result <= 32'(new_r);
                if (rq_valid != '1 && is_reserved(new_r, 1'b1)) begin
                  rq_uses[free_r] <= rq_uses[free_r] + 1'b1;
                  state           <= ADMIN_DRAW;
                end else if (rq_valid != '1) begin
                  rq_valid[free_r]  <= 1'b1;
                  rq_number[free_r] <= new_r;
                  rq_used[free_r]   <= 1'b0;
                end
              end
              default: begin
                command           <= '0;
                command.operation <= PORT_COMMAND_CREATE;
                command.qpn       <= new_q;
                command.kind      <= a_qp.kind;
                command.page      <= a_qp.page;
                c_return          <= ADMIN_QP_MADE;
                if (qp_valid == '1) begin
                  a_status <= ADMIN_STATUS_NO_RESOURCES;
                end else if (is_reserved(new_q, 1'b1)) begin
                  qp_uses[free_q] <= qp_uses[free_q] + 1'b1;
                  state           <= ADMIN_DRAW;
                end else begin
                  state <= COMMAND;
                end
              end
            endcase
          end
        end
        ADMIN_QP_SEND_CQ: begin
          a_send_cq <= found_c;
          a_status  <= ADMIN_STATUS_NOT_FOUND;
          find      <= a_qp.receive_cqn[23:0];
          state     <= has_c && a_qp.send_cqn[31:24] == '0 ? ADMIN_QP_RECEIVE_CQ : ADMIN_ANSWER;
        end
        ADMIN_QP_RECEIVE_CQ: begin
          a_receive_cq <= found_c;
          find         <= a_qp.rqn[23:0];
          state        <= has_c && a_qp.receive_cqn[31:24] == '0 ? ADMIN_QP_RQ : ADMIN_ANSWER;
        end
        ADMIN_QP_RQ: begin
          a_rq       <= found_r;
          io_address <= a_qp.sq_ring;
          state      <= ADMIN_ANSWER;
          if (has_r && a_qp.rqn[31:24] == '0) begin
            if (rq_used[found_r]) a_status <= ADMIN_STATUS_BUSY;
            else if (a_qp.sq_ring[5:0] != '0) a_status <= ADMIN_STATUS_INVALID;
            else state <= ADMIN_PROBE;
          end
        end
        ADMIN_QP_MADE: begin
          a_status        <= done.status;
          a_result        <= 32'(new_q);
          a_generation    <= timestamp[9:2] ^ new_q[7:0];
          qp_uses[free_q] <= qp_uses[free_q] + 1'b1;
          state           <= ADMIN_ANSWER;
          if (done.status == ADMIN_STATUS_SUCCESS) begin
            // The number is in use; it is counted when it is free again.
            qp_uses[free_q]        <= qp_uses[free_q];
            qp_valid[free_q]       <= 1'b1;
            qp_look[free_q]        <= 1'b0;
            qp_lost[free_q]        <= 1'b0;
            qp_stopped[free_q]     <= 1'b0;
            qp_number[free_q]      <= new_q;
            qp_generation[free_q]  <= timestamp[9:2] ^ new_q[7:0];
            qp_page[free_q]        <= a_qp.page;
            qp_pdn[free_q]         <= a_qp.pdn;
            qp_send_cq[free_q]     <= a_send_cq;
            qp_receive_cq[free_q]  <= a_receive_cq;
            qp_rq[free_q]          <= a_rq;
            qp_state[free_q]       <= QP_STATE_RESET;
            qp_access[free_q]      <= '0;
            qp_ring[free_q]        <= a_qp.sq_ring;
            qp_log2[free_q]        <= a_qp.log2_sq_blocks[4:0];
            qp_fetch[free_q]       <= '0;
            qp_producer[free_q]    <= '0;
            qp_next[free_q]        <= '0;
            qp_oldest[free_q]      <= '0;
            qp_room[free_q]        <= '0;
            qp_used[free_q]        <= '0;
            rq_used[a_rq]          <= 1'b1;
            cq_users[a_send_cq]    <= cq_users[a_send_cq] + 16'd1;
            if (a_send_cq == a_receive_cq) cq_users[a_send_cq] <= cq_users[a_send_cq] + 16'd2;
            else cq_users[a_receive_cq] <= cq_users[a_receive_cq] + 16'd1;
          end
        end
        ADMIN_MODIFY: begin
          q                        <= found_q;
          command                  <= '0;
          command.operation        <= PORT_COMMAND_MODIFY;
          command.qpn              <= a_change.qpn[23:0];
          command.attributes       <= a_attributes;
          c_return                 <= ADMIN_MODIFIED;
          a_status                 <= ADMIN_STATUS_NOT_FOUND;
          state                    <= ADMIN_ANSWER;
          if (has_q && a_change.qpn[31:24] == '0) begin
            // The checks look at q, which is there in the next cycle.
            if (q != found_q) state <= ADMIN_MODIFY;
            else if (a_change_status != ADMIN_STATUS_SUCCESS) a_status <= a_change_status;
            else if (!a_sound) a_status <= ADMIN_STATUS_INVALID;
            else begin
              command.attributes.state <= a_to;
              state                    <= COMMAND;
            end
          end
        end
        ADMIN_MODIFIED: begin
          a_status     <= done.status;
          a_generation <= qp_generation[q];
          state        <= ADMIN_ANSWER;
          if (done.status == ADMIN_STATUS_SUCCESS) begin
            qp_state[q] <= a_to;
            qp_look[q]  <= 1'b1;
            if (counts(a_attributes.mask, QP_ATTRIBUTE_MASK_ACCESS)) qp_access[q] <= a_attributes.access;
            if (a_to == QP_STATE_RESET) begin
              qp_generation[q] <= qp_generation[q] + 8'd1;
              a_generation     <= qp_generation[q] + 8'd1;
              qp_access[q]     <= '0;
              qp_stopped[q]    <= 1'b0;
              qp_lost[q]       <= 1'b0;
              qp_fetch[q]      <= '0;
              qp_producer[q]   <= '0;
              qp_next[q]       <= '0;
              qp_oldest[q]     <= '0;
              qp_room[q]       <= '0;
              qp_used[q]       <= '0;
            end
          end
        end
        ADMIN_DESTROYED: begin
          a_status <= ADMIN_STATUS_NOT_FOUND;
          state    <= ADMIN_ANSWER;
          q        <= found_q;
          command.qpn <= find;
          if (a_named.number[31:24] == '0) begin
            case (a_header.opcode)
              ADMIN_OPCODE_DESTROY_CQ:
              if (has_c) begin
                a_status <= ADMIN_STATUS_BUSY;
                if (cq_users[found_c] == '0) begin
                  a_status          <= ADMIN_STATUS_SUCCESS;
                  cq_valid[found_c] <= 1'b0;
                  cq_look[found_c]  <= 1'b0;
                  cq_uses[found_c]  <= cq_uses[found_c] + 1'b1;
                end
              end
              ADMIN_OPCODE_DESTROY_RQ:
              if (has_r) begin
                a_status <= ADMIN_STATUS_BUSY;
                if (!rq_used[found_r]) begin
                  a_status          <= ADMIN_STATUS_SUCCESS;
                  rq_valid[found_r] <= 1'b0;
                  rq_uses[found_r]  <= rq_uses[found_r] + 1'b1;
                end
              end
              ADMIN_OPCODE_QUERY_QP:
              if (has_q) begin
                command.operation <= PORT_COMMAND_QUERY;
                c_return          <= ADMIN_BLOCKS;
                state             <= COMMAND;
              end
              default:
              if (has_q) begin
                // From here on nothing of it is served.
                qp_valid[found_q]                         <= 1'b0;
                qp_look[found_q]                          <= 1'b0;
                qp_lost[found_q]                          <= 1'b0;
                qp_uses[found_q]                          <= qp_uses[found_q] + 1'b1;
                rq_used[qp_rq[found_q]]                   <= 1'b0;
                cq_users[qp_send_cq[found_q]]             <= cq_users[qp_send_cq[found_q]] - 16'd1;
                if (qp_send_cq[found_q] == qp_receive_cq[found_q])
                  cq_users[qp_send_cq[found_q]] <= cq_users[qp_send_cq[found_q]] - 16'd2;
                else cq_users[qp_receive_cq[found_q]] <= cq_users[qp_receive_cq[found_q]] - 16'd1;
                command.operation                         <= PORT_COMMAND_DESTROY;
                c_return                                  <= ADMIN_GID;
                state                                     <= COMMAND;
              end
            endcase
          end
        end
        // The transport's status is the command's.
        ADMIN_GID: begin
          a_status <= done.status;
          state    <= ADMIN_ANSWER;
          if (a_header.opcode == ADMIN_OPCODE_SET_GID && done.status == ADMIN_STATUS_SUCCESS)
            gid_valid[a_gid.index[3:0]] <= a_gid.valid == 8'd1;
        end
        ADMIN_KEY: begin
          a_status <= ADMIN_STATUS_SUCCESS;
          a_result <= is_rekey ? '0 : key_new;
          state    <= ADMIN_ANSWER;
          if (a_key.opcode == ADMIN_OPCODE_DESTROY_KEY) begin
            a_result <= '0;
            if (!key_there) a_status <= ADMIN_STATUS_NOT_FOUND;
          end else if (is_rekey && !key_there) begin
            a_status <= ADMIN_STATUS_NOT_FOUND;
          end else if (is_rekey && a_region_status != ADMIN_STATUS_SUCCESS) begin
            a_status <= a_region_status;
          end else if (!is_rekey && !key_room) begin
            a_status <= ADMIN_STATUS_NO_RESOURCES;
          end else if (!is_rekey && !key_made) begin
            state <= ADMIN_KEY;
          end
        end
        // Answers in blocks: of attributes two, of the port one, of the counters eight.
        ADMIN_BLOCKS: begin
          a_status <= done.status;
          state    <= ADMIN_ANSWER;
          if (done.status == ADMIN_STATUS_SUCCESS) begin
            if (a_header.response == '0 || a_header.response[5:0] != '0) begin
              a_status <= ADMIN_STATUS_INVALID;
            end else if (a_header.response[63:48] != '0) begin
              a_status <= ADMIN_STATUS_BAD_ADDRESS;
            end else begin
              a_blocks_left <= a_header.opcode == ADMIN_OPCODE_QUERY_PORT ? 4'd1 : 4'd2;
              state         <= ADMIN_RESPOND;
            end
          end
        end
        ADMIN_RESPOND: begin
          io_address <= a_header.response + {45'd0, a_counter, 3'd0};
          io_block   <= a_counter[3] ? done.attributes[1023:512] : done.attributes[511:0];
          if (a_header.opcode == ADMIN_OPCODE_QUERY_QP && !a_counter[3]) begin
            // The engine knows better than the transport.
            io_block[31:0]  <= '0;
            io_block[39:32] <= qp_state[q];
            io_block[47:40] <= qp_state[q];
            io_block[95:64] <= qp_access[q];
          end
          io_return <= ADMIN_RESPONDED;
          state     <= WRITE_ASK;
        end
        ADMIN_RESPONDED: begin
          a_counter      <= a_counter + 16'd8;
          a_blocks_left  <= a_blocks_left - 4'd1;
          command.number <= a_counter + 16'd8;
          if (io_failed) begin
            a_status <= ADMIN_STATUS_BAD_ADDRESS;
            state    <= ADMIN_ANSWER;
          end else if (a_blocks_left != 4'd1) begin
            state <= ADMIN_RESPOND;
          end else if (a_header.opcode == ADMIN_OPCODE_QUERY_COUNTERS && a_counter != 16'd56) begin
            state <= COMMAND;
          end else begin
            state <= ADMIN_ANSWER;
          end
        end
        ADMIN_ANSWER: begin
          io_block   <= a_completion;
          io_address <= ac_base + {32'd0, (admin_producer & ((32'd1 << ac_log2) - 32'd1)) << 6};
          io_return  <= ADMIN_ANSWERED;
          state      <= WRITE_ASK;
        end
        ADMIN_ANSWERED: begin
          admin_producer <= admin_producer + 32'd1;
          raised         <= 1'b1;
          state          <= IDLE;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end
        end

        // ---- Work requests: one entry of a queue pair a turn
        PUMP: begin
          cause      <= CQE_STATUS_FLUSHED;
          io_address <= qp_ring[q];
          io_return  <= PUMP_RECORD;
          state      <= IDLE;
          case (qp_state[q])
            QP_STATE_RTS:
            if (!qp_stopped[q]) state <= qp_fetch[q] == qp_producer[q] ? READ_ASK : PUMP_ENTRY;
            QP_STATE_ERR: state <= FLUSH_MESSAGE;
            default: ;
          endcase
        end
        PUMP_RECORD: begin
          qp_producer[q] <= io_block[31:0];
          state          <= io_block[31:0] == qp_fetch[q] ? IDLE : PUMP_ENTRY;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end
        end
        PUMP_ENTRY: begin
          w_read        <= '0;
          w_element     <= '0;
          w_length      <= '0;
          w_unreachable <= 1'b0;
          w_posted      <= qp_producer[q] - qp_fetch[q];
          io_address    <= qp_ring[q] + 64'd64 + 64'(sq_offset);
          io_return     <= PUMP_BLOCK;
          // Room that comes, and a message that ends, are reasons to look again.
          if (qp_room[q] == qp_used[q] || qp_next[q] - qp_oldest[q] == MESSAGES) state <= IDLE;
          else state <= READ_ASK;
        end
        PUMP_BLOCK: begin
          for (int i = 0; i < 5; i++) if (w_read == 3'(i)) w_block[i] <= io_block;
          w_read <= w_read + 3'd1;
          state  <= PUMP_CHECK;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end
        end
        PUMP_CHECK: begin
          w_message             <= '0;
          w_message.index       <= qp_fetch[q];
          w_message.is_signaled <= w_is_sound && (w_header.flags & WQE_SEND_FLAGS_SIGNALED) != '0;
          w_message.is_inline   <= (w_header.flags & WQE_SEND_FLAGS_INLINE) != '0;
          w_message.opcode      <= w_is_sound ? completed_as(w_header.opcode) : CQE_OPCODE_SEND;
          w_message.has_failed  <= 1'b1;
          w_message.status      <= CQE_STATUS_LOCAL_QP_OPERATION;
          io_address            <= qp_ring[q] + 64'd64 +
              {32'd0, ((qp_fetch[q] + 32'(w_read)) & sq_left) << 6};
          io_return             <= PUMP_BLOCK;
          state                 <= PUMP_KEPT;
          if (w_is_sound && 8'(w_read) < w_header.blocks) begin
            state <= READ_ASK;
          end else if (w_is_sound && w_header.opcode == WQE_SEND_OPCODE_WRITE) begin
            if ((w_header.flags & WQE_SEND_FLAGS_INLINE) != '0) begin
              w_length <= 36'(w_header.inline_length);
              if (w_header.num_sge == '0 && w_header.inline_length <= WQE_MAX_INLINE &&
                  w_header.inline_length + WQE_SEND_PAYLOAD_OFFSET <= 32'(w_header.blocks) << 6)
                state <= PUMP_SUBMIT;
            end else if (w_header.num_sge <= WQE_MAX_SGE[7:0] &&
                         (32'(w_header.num_sge) << 4) + WQE_SEND_PAYLOAD_OFFSET <= 32'(w_header.blocks) << 6) begin
              w_message.elements <= w_header.num_sge[4:0];
              state              <= w_header.num_sge == '0 ? PUMP_SUBMIT : PUMP_ELEMENT;
            end
          end
        end
        PUMP_ELEMENT: begin
          elements[{q, qp_next[q][MESSAGE_BITS-1:0], w_element[3:0]}] <= w_sge;
          w_length   <= w_length + 36'(w_sge.length);
          key_key    <= w_sge.lkey;
          key_pdn    <= qp_pdn[q];
          key_va     <= w_sge.address;
          key_length <= w_sge.length;
          key_right  <= '0;
          state      <= PUMP_KEY;
        end
        PUMP_KEY: begin
          if (key_length != '0 && !key_open) w_unreachable <= 1'b1;
          w_element <= w_element + 5'd1;
          state     <= w_element + 5'd1 == w_message.elements ? PUMP_SUBMIT : PUMP_ELEMENT;
        end
        PUMP_SUBMIT: begin
          w_message.length      <= w_length[31:0];
          submit                <= '0;
          submit.qpn            <= qp_number[q];
          submit.operation      <= w_header.opcode;
          submit.solicited      <= (w_header.flags & WQE_SEND_FLAGS_SOLICITED) != '0;
          submit.fence          <= (w_header.flags & WQE_SEND_FLAGS_FENCE) != '0;
          submit.length         <= w_length[31:0];
          submit.remote_address <= w_header.remote_address;
          submit.rkey           <= w_header.rkey;
          state                 <= PUMP_KEPT;
          if (w_length > 36'(MAX_MESSAGE)) begin
            w_message.status <= CQE_STATUS_LOCAL_LENGTH;
          end else if (w_unreachable) begin
            w_message.status <= CQE_STATUS_LOCAL_PROTECTION;
          end else begin
            w_message.has_failed <= 1'b0;
            state                <= PUMP_KEPT;
          end
        end
        PUMP_KEPT: begin
          // It is kept before the transport hears of it, and may ask for its bytes.
          messages[{q, qp_next[q][MESSAGE_BITS-1:0]}] <= w_message;
          qp_next[q]  <= qp_next[q] + 32'd1;
          qp_fetch[q] <= qp_fetch[q] + w_takes;
          if (w_message.has_failed) begin
            // A failed entry is always signaled; it completes when all before it have.
            qp_stopped[q] <= 1'b1;
            cause         <= w_message.status;
            state         <= qp_next[q] == qp_oldest[q] ? FAIL : IDLE;
          end else begin
            qp_used[q] <= qp_used[q] + 16'd1;
            qp_look[q] <= 1'b1;
            state      <= PUMP_SENT;
          end
        end
        PUMP_SENT: if (submit_ready) state <= IDLE;

        // ---- A queue pair fails, or is in ERR: the oldest message has `cause`, all others are flushed
        FAIL_TOLD: begin
          cause          <= CQE_STATUS_FLUSHED;
          v_event        <= '0;
          v_event.kind   <= EVENT_TYPE_QP;
          v_event.code   <= 8'(EVENT_QP_EVENT_FATAL);
          v_event.number <= 32'(qp_number[q]);
          v_return       <= FAIL;
          state          <= qp_valid[q] && qp_state[q] != QP_STATE_RESET && qp_state[q] != QP_STATE_ERR ?
              EVENT_BEGIN : IDLE;
        end
        FAIL: begin
          command                  <= '0;
          command.operation        <= PORT_COMMAND_MODIFY;
          command.qpn              <= qp_number[q];
          command.attributes.mask  <= QP_ATTRIBUTE_MASK_STATE;
          command.attributes.state <= QP_STATE_ERR;
          c_return                 <= FLUSH;
          state                    <= COMMAND;
        end
        FLUSH: begin
          qp_state[q] <= qp_state[q] == QP_STATE_RESET ? QP_STATE_RESET : QP_STATE_ERR;
          state       <= qp_state[q] == QP_STATE_RESET ? IDLE : FLUSH_MESSAGE;
        end
        FLUSH_MESSAGE: begin
          e_cq     <= qp_send_cq[q];
          e_qp     <= q;
          e_cqe    <= send_cqe(qp_number[q], qp_generation[q], oldest.index, oldest.opcode, cause, '0);
          e_return <= FLUSH_MESSAGE;
          if (qp_oldest[q] == qp_next[q]) begin
            state <= FLUSH_POSTED;
          end else begin
            qp_oldest[q] <= qp_oldest[q] + 32'd1;
            cause        <= CQE_STATUS_FLUSHED;
            state        <= CQE_BEGIN;
          end
        end
        FLUSH_POSTED: begin
          io_address <= qp_ring[q];
          io_return  <= FLUSH_RECORD;
          state      <= READ_ASK;
        end
        FLUSH_RECORD: begin
          qp_producer[q] <= io_block[31:0];
          w_posted       <= io_block[31:0] - qp_fetch[q];
          io_address     <= qp_ring[q] + 64'd64 + 64'(sq_offset);
          io_return      <= FLUSH_ENTRY;
          state          <= io_block[31:0] == qp_fetch[q] ? IDLE : READ_ASK;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end
        end
        FLUSH_ENTRY: begin
          w_block[0] <= io_block;
          state      <= FLUSH_TAKEN;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end
        end
        FLUSH_TAKEN: begin
          // One a turn: whoever posts for ever keeps nobody waiting.
          qp_fetch[q] <= qp_fetch[q] + w_takes;
          qp_look[q]  <= 1'b1;
          e_cq        <= qp_send_cq[q];
          e_qp        <= q;
          e_cqe       <= send_cqe(
              qp_number[q],
              qp_generation[q],
              qp_fetch[q],
              w_is_sound ? completed_as(w_header.opcode) : CQE_OPCODE_SEND,
              CQE_STATUS_FLUSHED,
              '0
          );
          e_return    <= IDLE;
          state       <= CQE_BEGIN;
        end

        // ---- A completion queue is armed
        ARM: begin
          io_address <= cq_ring[c];
          io_return  <= ARMED;
          state      <= cq_valid[c] ? READ_ASK : IDLE;
        end
        ARMED: begin
          state <= IDLE;
          if (io_failed) begin
            fatal_code <= WINDOW_FATAL_RING_UNREACHABLE;
            state      <= FATAL;
          end else if ((arm.kind == DOORBELL_ARM_CODE_SOLICITED[1:0] || arm.kind == DOORBELL_ARM_CODE_ANY[1:0]) &&
                       arm.arm_sequence != cq_sequence[c]) begin
            cq_sequence[c] <= arm.arm_sequence;
            if (fires) begin
              cq_armed[c]    <= DOORBELL_ARM_CODE_NEVER[1:0];
              v_event        <= '0;
              v_event.kind   <= EVENT_TYPE_COMPLETION;
              v_event.number <= 32'(cq_number[c]);
              v_event.data   <= 64'(arm.arm_sequence);
              v_return       <= IDLE;
              state          <= EVENT_BEGIN;
            end else begin
              cq_armed[c] <= is_for_any ? DOORBELL_ARM_CODE_ANY[1:0] : DOORBELL_ARM_CODE_SOLICITED[1:0];
            end
          end
        end

        // ---- What the transport reports
        REPORT: begin
          q     <= found_q;
          cause <= r.status;
          state <= IDLE;
          if (r.kind == PORT_REPORT_LINK) begin
            v_event      <= '0;
            v_event.kind <= EVENT_TYPE_PORT;
            v_event.code <= 8'(r.count != '0);
            v_return     <= IDLE;
            if (is_enabled) state <= EVENT_BEGIN;
          end else if (has_q) begin
            case (r.kind)
              PORT_REPORT_ENDED:  state <= REPORT_ENDED;
              PORT_REPORT_FAILED: state <= FLUSH;
              PORT_REPORT_ERROR: begin
                cause <= CQE_STATUS_FLUSHED;
                state <= FLUSH;
              end
              PORT_REPORT_EVENT: begin
                v_event        <= '0;
                v_event.kind   <= EVENT_TYPE_QP;
                v_event.code   <= 8'(r.event_);
                v_event.number <= 32'(r.qpn);
                v_return       <= IDLE;
                state          <= EVENT_BEGIN;
              end
              // Nothing was claimed that could be filled.
              default: ;
            endcase
          end
        end
        REPORT_ENDED: begin
          r.count    <= r.count - 32'd1;
          qp_look[q] <= 1'b1;
          e_cq       <= qp_send_cq[q];
          e_qp       <= q;
          e_cqe      <= send_cqe(
              qp_number[q], qp_generation[q], oldest.index, oldest.opcode, CQE_STATUS_SUCCESS, oldest.length
          );
          e_return   <= REPORT_ENDED;
          if (qp_oldest[q] == qp_next[q]) begin
            state <= IDLE;
          end else if (oldest.has_failed) begin
            // It was never submitted; all before it have ended.
            cause <= oldest.status;
            state <= FAIL;
          end else if (r.count == '0) begin
            state <= IDLE;
          end else begin
            qp_oldest[q] <= qp_oldest[q] + 32'd1;
            if (oldest.is_signaled) state <= CQE_BEGIN;
          end
        end

        // ---- What the transport asks
        CHECK: begin
          q          <= found_q;
          key_key    <= k.rkey;
          key_pdn    <= qp_pdn[found_q];
          key_va     <= k.address;
          key_length <= k.length;
          key_right  <= k.access == PORT_ACCESS_READ ? KEY_ACCESS_REMOTE_READ : KEY_ACCESS_REMOTE_WRITE;
          t_verdict  <= PORT_VERDICT_UNREACHABLE;
          state      <= has_q ? CHECK_KEY : CHECKED;
        end
        CHECK_KEY: begin
          // READ is not offered.
          if ((qp_access[q] & key_right) == '0 || k.access == PORT_ACCESS_READ)
            t_verdict <= PORT_VERDICT_INVALID_REQUEST;
          else t_verdict <= key_length == '0 || key_open ? PORT_VERDICT_DONE : PORT_VERDICT_DENIED;
          state <= CHECKED;
        end
        CHECKED: if (checked_ready) state <= IDLE;
        FETCH: begin
          q         <= found_q;
          t_skip    <= t.offset;
          t_left    <= t.length;
          t_element <= '0;
          t_verdict <= PORT_VERDICT_UNREACHABLE;
          state     <= has_q && t.payload == PORT_PAYLOAD_MESSAGE ? FETCH_MESSAGE : FETCH_ANSWER;
        end
        FETCH_MESSAGE: begin
          state <= FETCH_ELEMENT;
          if (t.number - qp_oldest[q] >= qp_next[q] - qp_oldest[q] || t_message.has_failed ||
              t_end > 36'(t_message.length))
            state <= FETCH_ANSWER;
        end
        FETCH_ELEMENT: begin
          if (t_message.is_inline) begin
            // It stands in the ring, which its owner keeps until the completion.
            t_piece    <= inline_to_end < 32'(t_left) ? inline_to_end[12:0] : t_left;
            io_address <= qp_ring[q] + 64'd64 + 64'(inline_start);
            state      <= FETCH_ASK;
          end else if (t_element == t_message.elements) begin
            state <= FETCH_ANSWER;
          end else if (t_skip >= t_sge.length) begin
            t_skip    <= t_skip - t_sge.length;
            t_element <= t_element + 5'd1;
          end else begin
            t_piece    <= sge_left < 32'(t_left) ? sge_left[12:0] : t_left;
            key_key    <= t_sge.lkey;
            key_pdn    <= qp_pdn[q];
            key_va     <= t_sge.address + 64'(t_skip);
            key_length <= sge_left < 32'(t_left) ? sge_left : 32'(t_left);
            key_right  <= '0;
            state      <= FETCH_KEY;
          end
        end
        FETCH_KEY: begin
          io_address <= key_iova;
          state      <= key_open ? FETCH_ASK : FETCH_ANSWER;
        end
        FETCH_ASK: begin
          io_failed <= 1'b0;
          if (sq_rd_ready) begin
            t_beats_left <= t_piece;
            t_left       <= t_left - t_piece;
            t_skip       <= t_skip + 32'(t_piece);
            state        <= FETCH_DATA;
          end
        end
        FETCH_DATA: begin
          if (io_failed) begin
            state <= FETCH_ANSWER;
          end else if (recv_valid && recv_ready) begin
            t_beats_left <= t_beats_left - 13'(recv_bytes);
            if (recv.last) begin
              t_verdict <= t_left == '0 ? PORT_VERDICT_DONE : PORT_VERDICT_UNREACHABLE;
              state     <= t_left == '0 ? FETCH_ANSWER : FETCH_ELEMENT;
            end
          end
        end
        FETCH_ANSWER: if (fetched_ready) state <= t_verdict == PORT_VERDICT_DONE ? FETCH_GIVE : IDLE;
        FETCH_GIVE: if (fetched_beat_valid && fetched_beat_ready && fetched_beat.last) state <= IDLE;
        PLACE: begin
          q          <= found_q;
          key_key    <= t.rkey;
          key_pdn    <= qp_pdn[found_q];
          key_va     <= t.address;
          key_length <= 32'(t.length);
          key_right  <= KEY_ACCESS_REMOTE_WRITE;
          t_verdict  <= PORT_VERDICT_UNREACHABLE;
          state      <= has_q && t.payload == PORT_PAYLOAD_REMOTE && t.access == PORT_ACCESS_WRITE ? PLACE_KEY :
              PLACE_DRAIN;
        end
        PLACE_KEY: begin
          io_address <= key_iova;
          state      <= key_open ? PLACE_ASK : PLACE_DRAIN;
        end
        PLACE_ASK: begin
          io_failed <= 1'b0;
          if (sq_wr_ready) state <= PLACE_DATA;
        end
        PLACE_DATA:
        if (place_out_valid && send_ready && place_out.last) state <= PLACE_END;
        PLACE_END:
        if (cq_wr_valid || io_failed) begin
          if (!io_failed) t_verdict <= PORT_VERDICT_DONE;
          state <= PLACE_ANSWER;
        end
        PLACE_DRAIN: if (place_out_valid && place_out.last) state <= PLACE_ANSWER;
        PLACE_ANSWER: if (placed_ready) state <= IDLE;
        ANSWER: if (claimed_ready) state <= IDLE;
        default: state <= IDLE;
      endcase
    end
  end
endmodule
