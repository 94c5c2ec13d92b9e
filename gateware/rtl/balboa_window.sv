// Page 0 of the engine's window, and the stores to its doorbell pages.
module balboa_window
  import balboa_card_pkg::*;
  import balboa_host_pkg::*;
#(
    parameter int unsigned Qps = 64,
    parameter int unsigned Cqs = 64,
    parameter int unsigned Rqs = 64,
    parameter int unsigned Keys = 256,
    parameter logic [63:0] Capabilities = '0,
    parameter int unsigned Log2Cq = 12,
    parameter int unsigned Log2Sq = 10,
    parameter int unsigned Log2Rq = 10,
    parameter logic [31:0] MaxMessage = 32'h4000_0000,
    // Bits of a queue pair's number below the vFPGA's, and those of them that nobody guesses.
    parameter int unsigned QpnBits = 20,
    parameter int unsigned QpnRandom = 13
) (
    input  logic                          clk,
    input  logic                          rst_n,
    input  logic                          write_valid,
    input  register_write_t               write,
    input  logic                   [15:0] read_address,
    output logic                   [63:0] read_data,
    // The engine's state.
    input  window_status_t                status,
    input  logic                   [63:0] timestamp,
    // The driver's rings.
    output logic                   [63:0] admin_sq_base,
    output logic                   [63:0] admin_sq_size,
    output logic                   [63:0] admin_cq_base,
    output logic                   [63:0] admin_cq_size,
    output logic                   [63:0] event_base,
    output logic                   [63:0] event_size,
    output logic                   [63:0] event_rings,
    output logic                   [63:0] event_completions,
    // They are forgotten.
    input  logic                          clear_rings,
    // What numbers are drawn from; it holds from the first start on.
    output logic                   [63:0] seed,
    input  logic                          is_enabled,
    // Faults that were refused, of which the requests have not come to their turn.
    input  window_fault_notes_t           fault_notes,
    // Bytes of payload that came from host memory, and went there.
    input  logic                   [63:0] payload_read,
    input  logic                   [63:0] payload_written,
    // One cycle each.
    output logic                          enables,
    output logic                          resets,
    output logic                          admin_rings,
    output logic                   [31:0] admin_producer,
    output logic                          consumes,
    output window_event_consumer_t        consumed,
    output logic                          clears_overflow,
    output logic                          tells_refused,
    output window_fault_refused_t         refused,
    // A store to a slot: the queues behind it are to be looked at.
    output logic                          rings,
    output logic                   [ 3:0] rung_page,
    output doorbell_queue_code_t          rung_kind,
    output logic                   [ 6:0] rung_place,
    // There is none.
    input  logic                          rings_nobody
);
  // The seed where the driver gives none.
  localparam logic [63:0] UNSEEDED = 64'ha54f_f53a_5f1d_36f1;

  logic        is_written;
  logic        is_page_0;
  logic        is_writable;
  logic [31:0] offset;
  logic [31:0] read_offset;

  // A register is written whole, or not at all.
  assign is_written = write_valid && write.strobe == '1 && write.address[2:0] == '0;
  assign is_page_0 = write.address[15:12] == '0;
  assign offset = 32'(write.address);
  assign read_offset = 32'(read_address);

  assign rings = is_written && !is_page_0;
  assign rung_page = write.address[15:12];
  assign rung_kind = doorbell_queue_code_t'({6'd0, write.address[11:10]});
  assign rung_place = write.address[9:3];

  always_comb begin
    window_control_t control;
    control = window_control_t'(write.data);
    enables = 1'b0;
    resets  = 1'b0;
    if (is_written && offset == WINDOW_CONTROL) begin
      resets  = control.reset;
      enables = control.enable && !control.reset;
    end
  end
  assign admin_rings     = is_written && offset == WINDOW_ADMIN_DOORBELL;
  assign admin_producer  = write.data[31:0];
  assign consumes        = is_written && offset == WINDOW_EVENT_CONSUMER;
  assign consumed        = window_event_consumer_t'(write.data);
  assign clears_overflow = is_written && offset == WINDOW_EVENT_OVERFLOW_CLEAR && write.data[39:32] == '0;
  assign tells_refused   = is_written && offset == WINDOW_FAULT_REFUSED;
  assign refused         = window_fault_refused_t'(write.data);

  // A number that comes again with another seed would not rest, and one in use would not be found.
  logic is_seeded;
  logic seeds;

  assign seeds = is_written && offset == WINDOW_SEED && write.data != '0 && !is_seeded && !is_enabled;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      seed      <= UNSEEDED;
      is_seeded <= 1'b0;
    end else begin
      if (seeds) seed <= write.data;
      if (seeds || is_enabled) is_seeded <= 1'b1;
    end
  end

  // ---- Stores that change nothing

  window_ignored_t ignored;

  always_comb begin
    case (offset)
      WINDOW_CONTROL, WINDOW_ADMIN_SQ_BASE, WINDOW_ADMIN_SQ_SIZE, WINDOW_ADMIN_CQ_BASE, WINDOW_ADMIN_CQ_SIZE,
      WINDOW_ADMIN_DOORBELL, WINDOW_EVENT_BASE, WINDOW_EVENT_SIZE, WINDOW_EVENT_RINGS, WINDOW_EVENT_COMPLETIONS,
      WINDOW_EVENT_CONSUMER, WINDOW_EVENT_OVERFLOW_CLEAR, WINDOW_SEED, WINDOW_FAULT_REFUSED:
      is_writable = 1'b1;
      default: is_writable = !is_page_0 && rung_kind[1:0] != 2'd3;
    endcase
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      ignored <= '0;
    end else begin
      ignored.stores    <= ignored.stores + 32'(write_valid && !(is_written && is_writable));
      ignored.doorbells <= ignored.doorbells + 32'(rings_nobody);
    end
  end

  always_comb begin
    window_version_t       version;
    window_limit_queues_t  queues;
    window_limit_port_t    port;
    window_limit_numbers_t numbers;
    version                    = '0;
    version.major              = WINDOW_VERSION_MAJOR[15:0];
    version.minor              = WINDOW_VERSION_MINOR[15:0];
    version.profile            = WINDOW_PROFILE_VQE;
    queues                     = '0;
    queues.log2_cq_entries     = 8'(Log2Cq);
    queues.log2_sq_blocks      = 8'(Log2Sq);
    queues.log2_rq_entries     = 8'(Log2Rq);
    queues.max_sge             = WQE_MAX_SGE[7:0];
    queues.max_inline          = WQE_MAX_INLINE[15:0];
    queues.max_reads_answered  = 8'd16;
    queues.max_reads_under_way = 8'd16;
    port                       = '0;
    port.max_message           = MaxMessage;
    port.gids                  = 8'd16;
    port.pkeys                 = 8'd1;
    numbers                    = '0;
    numbers.qpn_bits           = 8'(QpnBits);
    numbers.qpn_random         = 8'(QpnRandom);
    case (read_offset)
      WINDOW_MAGIC:             read_data = WINDOW_MAGIC_VALUE;
      WINDOW_VERSION:           read_data = version;
      WINDOW_CAPABILITIES:      read_data = Capabilities;
      WINDOW_LIMIT_QP_CQ:       read_data = {Cqs, Qps};
      WINDOW_LIMIT_KEY_RQ:      read_data = {Rqs, Keys};
      WINDOW_LIMIT_QUEUES:      read_data = queues;
      WINDOW_LIMIT_PORT:        read_data = port;
      WINDOW_LIMIT_EVENTS:      read_data = 64'd1;
      WINDOW_LIMIT_NUMBERS:     read_data = numbers;
      WINDOW_IGNORED:           read_data = ignored;
      WINDOW_PAYLOAD_READ:      read_data = payload_read;
      WINDOW_PAYLOAD_WRITTEN:   read_data = payload_written;
      WINDOW_STATUS:            read_data = status;
      WINDOW_TIMESTAMP:         read_data = timestamp;
      WINDOW_ADMIN_SQ_BASE:     read_data = admin_sq_base;
      WINDOW_ADMIN_SQ_SIZE:     read_data = admin_sq_size;
      WINDOW_ADMIN_CQ_BASE:     read_data = admin_cq_base;
      WINDOW_ADMIN_CQ_SIZE:     read_data = admin_cq_size;
      WINDOW_EVENT_BASE:        read_data = event_base;
      WINDOW_EVENT_SIZE:        read_data = event_size;
      WINDOW_EVENT_RINGS:       read_data = event_rings;
      WINDOW_EVENT_COMPLETIONS: read_data = event_completions;
      WINDOW_FAULT_REFUSED:     read_data = fault_notes;
      default:                  read_data = '0;
    endcase
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clear_rings) begin
      admin_sq_base     <= '0;
      admin_sq_size     <= '0;
      admin_cq_base     <= '0;
      admin_cq_size     <= '0;
      event_base        <= '0;
      event_size        <= '0;
      event_rings       <= '0;
      event_completions <= '0;
    end else if (is_written) begin
      case (offset)
        WINDOW_ADMIN_SQ_BASE:     admin_sq_base <= write.data;
        WINDOW_ADMIN_SQ_SIZE:     admin_sq_size <= write.data;
        WINDOW_ADMIN_CQ_BASE:     admin_cq_base <= write.data;
        WINDOW_ADMIN_CQ_SIZE:     admin_cq_size <= write.data;
        WINDOW_EVENT_BASE:        event_base <= write.data;
        WINDOW_EVENT_SIZE:        event_size <= write.data;
        WINDOW_EVENT_RINGS:       event_rings <= write.data;
        WINDOW_EVENT_COMPLETIONS: event_completions <= write.data;
        default:                  ;
      endcase
    end
  end
endmodule
