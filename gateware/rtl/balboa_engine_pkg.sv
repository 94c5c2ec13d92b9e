// What the parts of the queue engine share: its limits, its objects, and what a part asks of another.
//
// A part asks another in one cycle, by `x_asks` and the record `x_ask`, and goes on in the one cycle of `x_ended`. It asks
// nothing else meanwhile.
`ifndef BALBOA_ENGINE_PKG_SV
`define BALBOA_ENGINE_PKG_SV

package balboa_engine_pkg;
  import balboa_card_pkg::*;

  // A module need not use all of the package.
  /* verilator lint_off UNUSEDPARAM */

  // ---- Limits

  // Places of a table that are never in use: so a number rests until at least 4,096 others were freed, whatever becomes free.
  localparam int unsigned RESTING = 16;
  localparam int unsigned QP_PLACES = 4096;
  localparam int unsigned QPS = QP_PLACES - RESTING;
  localparam int unsigned CQ_PLACES = 4096;
  localparam int unsigned CQS = CQ_PLACES - RESTING;
  localparam int unsigned RQ_PLACES = 4096;
  localparam int unsigned RQS = RQ_PLACES - RESTING;
  localparam int unsigned KEY_PLACES = 16384;
  localparam int unsigned KEYS = KEY_PLACES - RESTING;
  // Messages of a queue pair that are under way, where it has a bank for them, and the elements of that. One without has a
  // message of one element.
  localparam int unsigned MESSAGES = 32;
  localparam int unsigned ELEMENTS = 128;
  // Banks of each page (`balboa_banks`); of messages, and each for the elements of a receive of more than one.
  localparam int unsigned OWN_BANKS = 4;
  localparam int unsigned BANKS = 32 * OWN_BANKS;
  // Receives of a queue pair that are claimed.
  localparam int unsigned RECEIVES = 4;
  localparam int unsigned LOG2_CQ = 12;
  localparam int unsigned LOG2_SQ = 10;
  localparam int unsigned LOG2_RQ = 10;
  localparam logic [31:0] MAX_MESSAGE = 32'h4000_0000;
  // Bits of an address of host memory.
  localparam int unsigned ADDRESS_BITS = 44;
  localparam logic [63:0] CAPABILITIES = WINDOW_CAPABILITIES_RC | WINDOW_CAPABILITIES_SEND |
      WINDOW_CAPABILITIES_WRITE | WINDOW_CAPABILITIES_READ | WINDOW_CAPABILITIES_IMMEDIATE | WINDOW_CAPABILITIES_RNR |
      WINDOW_CAPABILITIES_SRQ | WINDOW_CAPABILITIES_RESIZE_CQ | WINDOW_CAPABILITIES_SEED |
      WINDOW_CAPABILITIES_FAULT_REFUSED;
  localparam logic [31:0] ACCESSES = KEY_ACCESS_LOCAL_WRITE | KEY_ACCESS_REMOTE_WRITE |
      KEY_ACCESS_REMOTE_READ | KEY_ACCESS_REMOTE_ATOMIC | KEY_ACCESS_WINDOW_BIND |
      KEY_ACCESS_ZERO_BASED | KEY_ACCESS_RELAXED_ORDERING;
  // Nanoseconds of a cycle.
  localparam int unsigned NANOSECONDS = 4;

  // ---- Objects

  localparam int unsigned QP_BITS = $clog2(QP_PLACES);
  localparam int unsigned CQ_BITS = $clog2(CQ_PLACES);
  localparam int unsigned RQ_BITS = $clog2(RQ_PLACES);
  // A queue's place is {its column, its row}; the row is what its doorbell's slot says. Tables of queues are equally large.
  localparam int unsigned QUEUE_PLACE_BITS = QP_BITS;
  localparam int unsigned ROW_BITS = 7;
  // A queue pair's number below the vFPGA's.
  localparam int unsigned QPN_BITS = 20;
  localparam int unsigned COLUMN_BITS = QUEUE_PLACE_BITS - ROW_BITS;
  localparam int unsigned COLUMNS = 1 << COLUMN_BITS;
  localparam int unsigned MESSAGE_BITS = $clog2(MESSAGES);
  localparam int unsigned ELEMENT_BITS = $clog2(ELEMENTS);
  localparam int unsigned BANK_BITS = $clog2(BANKS);
  localparam int unsigned RECEIVE_BITS = $clog2(RECEIVES);

  // The place of an object in its table.
  typedef logic [QP_BITS-1:0] qp_place_t;
  typedef logic [CQ_BITS-1:0] cq_place_t;
  typedef logic [RQ_BITS-1:0] rq_place_t;
  // One of any of these kinds.
  typedef logic [QUEUE_PLACE_BITS-1:0] queue_place_t;
  // Places of a row.
  typedef logic [COLUMNS-1:0] columns_t;

  // The address of a ring, which is within reach, in blocks.
  typedef logic [ADDRESS_BITS-7:0] ring_t;

  // A queue pair, without the state of its send queue.
  typedef struct packed {
    logic [23:0] number;
    logic [7:0] generation;
    logic [7:0] page;
    logic [31:0] pdn;
    cq_place_t send_cq;
    cq_place_t receive_cq;
    rq_place_t rq;
    // Others use its receive queue, too.
    logic is_rq_shared;
    qp_state_t state;
    logic [31:0] access;
    // It may have READs under way.
    logic can_read;
    // The command that drained it asked for an event.
    logic tells_drained;
    ring_t ring;
    logic [4:0] log2;
  } qp_t;

  // A completion queue, without its indices.
  typedef struct packed {
    logic [23:0] number;
    logic [7:0] page;
    ring_t ring;
    logic [4:0] log2;
  } cq_t;

  // A receive queue, without its indices.
  typedef struct packed {
    logic [23:0] number;
    logic [7:0]  page;
    logic [31:0] pdn;
    ring_t       ring;
    logic [4:0]  log2;
    // Of the blocks from one entry to the next.
    logic [4:0]  log2_stride;
    // It serves any number of queue pairs.
    logic        is_shared;
  } rq_t;

  // A message that is under way, or an entry that failed.
  typedef struct packed {
    logic [31:0]             index;
    logic [31:0]             length;
    logic                    is_signaled;
    logic                    is_inline;
    logic                    has_failed;
    logic [4:0]              elements;
    // Of its elements, in the bank.
    logic [ELEMENT_BITS-1:0] first;
    cqe_opcode_t             opcode;
    cqe_status_t             status;
  } message_t;

  // A receive that is claimed, or one that cannot be filled.
  typedef struct packed {
    logic [31:0] pdn;
    logic [31:0] capacity;
    logic [4:0]  elements;
    logic        has_failed;
    // Its elements are in a bank.
    logic        has_bank;
  } receive_t;

  // Numbers of messages, or of receives: the next one, and the oldest that is not complete.
  typedef struct packed {
    logic [31:0] next;
    logic [31:0] oldest;
  } numbers_t;

  // ---- What is asked

  // A block of host memory, to be read or written.
  typedef struct packed {
    logic         is_write;
    // Its end is not waited for: where it is out of reach, the engine fails.
    logic         is_posted;
    logic [63:0]  address;
    logic [511:0] block;
  } block_ask_t;

  // A completion, but for its time and its phase; the queue pair fails if the queue overruns.
  typedef struct packed {
    // It is still to come, and room is to be kept for it; that was done before.
    logic      keeps;
    logic      is_kept;
    cq_place_t cq;
    qp_place_t qp;
    cqe_t      cqe;
  } completion_ask_t;

  // The completion of a receive, but for its tag. Where none is claimed, one that is posted to a private queue may do.
  typedef struct packed {
    logic      is_flush;
    logic      takes_posted;
    qp_place_t place;
    qp_t       qp;
    cqe_t      cqe;
  } receive_ask_t;

  // A completion queue is to go on in this ring.
  typedef struct packed {
    cq_place_t  cq;
    ring_t      ring;
    logic [4:0] log2;
  } resize_ask_t;

  // The limit of a shared receive queue is to be this.
  typedef struct packed {
    rq_place_t   rq;
    logic [15:0] limit;
  } limit_ask_t;

  // May bytes be reached by a key of a domain, with a right? The answer stands in the next cycle.
  typedef struct packed {
    logic [31:0] key;
    logic [31:0] pdn;
    logic [63:0] va;
    logic [31:0] length;
    logic [31:0] right;
  } key_ask_t;

  // ---- Words of all parts

  // The doorbell page of a client.
  function automatic logic [3:0] page_of(input logic [7:0] client);
    return client > 8'd15 ? WINDOW_RELAY_PAGE[3:0] : client[3:0];
  endfunction

  // A place as one of its row.
  function automatic columns_t column_of(input queue_place_t place);
    return columns_t'(1) << place[QUEUE_PLACE_BITS-1:ROW_BITS];
  endfunction

  // The completion of a receive that no message fills.
  function automatic cqe_t flushed_receive(input qp_t qp);
    cqe_t entry;
    entry            = '0;
    entry.qpn        = 32'(qp.number);
    entry.generation = qp.generation;
    entry.opcode     = CQE_OPCODE_RECEIVE;
    entry.status     = CQE_STATUS_FLUSHED;
    entry.flags      = CQE_FLAGS_RECEIVE;
    return entry;
  endfunction

  // Whether a number is one of those under way.
  function automatic logic has_number(input numbers_t numbers, input logic [31:0] number);
    return number - numbers.oldest < numbers.next - numbers.oldest;
  endfunction

  // Whether there can be host memory at an address.
  function automatic logic is_reachable(input logic [63:0] address);
    return address[63:ADDRESS_BITS] == '0;
  endfunction

  // A ring of a queue begins with the queue's record; its entries stand behind that.
  function automatic ring_t ring_of(input logic [63:0] address);
    return address[ADDRESS_BITS-1:6];
  endfunction

  function automatic logic [63:0] record_of(input ring_t ring);
    return 64'({ring, 6'd0});
  endfunction

  function automatic logic [63:0] entries_of(input ring_t ring);
    return 64'({ring, 6'd0}) + 64'd64;
  endfunction

  // The address of an entry of a ring.
  function automatic logic [63:0] entry_of(input logic [63:0] ring, input logic [31:0] index, input logic [4:0] log2);
    return ring + {32'd0, (index & ((32'd1 << log2) - 32'd1)) << 6};
  endfunction

  // A block that is to be read.
  function automatic block_ask_t read_of(input logic [63:0] address);
    return '{is_write: 1'b0, is_posted: 1'b0, address: address, block: '0};
  endfunction

  /* verilator lint_on UNUSEDPARAM */
endpackage

`endif
