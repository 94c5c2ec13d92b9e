// The bytes of messages for the transport: gathered from host memory, aligned, and kept until all of them are there.
module balboa_gather
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
  import balboa_card_pkg::*;
(
    input  logic                  clk,
    input  logic                  rst_n,
    input  logic                  asks,
    input  port_transfer_t        ask,
    output logic                  is_idle,
    // Its queue pair.
    output logic                  finds,
    output logic           [23:0] find,
    input  logic                  has_found,
    input  qp_place_t             found_place,
    input  qp_t                   found,
    // Its message.
    output qp_place_t             place,
    output port_number_t          number,
    output logic           [ 3:0] element,
    input  logic                  is_current,
    input  message_t              message,
    input  wqe_sge_t              sge,
    // Keys.
    output logic                  key_asks,
    output key_ask_t              key_ask,
    input  logic                  key_open,
    input  logic           [63:0] key_iova,
    // Host memory.
    output logic                  read_valid,
    input  logic                  read_ready,
    output logic           [47:0] read_address,
    output logic           [27:0] read_length,
    input  logic                  recv_valid,
    output logic                  recv_ready,
    input  host_beat_t            recv,
    input  logic                  fault_valid,
    // The transport.
    output logic                  fetched_valid,
    input  logic                  fetched_ready,
    output port_fetched_t         fetched,
    output logic                  beat_valid,
    input  logic                  beat_ready,
    output port_beat_t            beat
);
  typedef enum logic [3:0] {
    IDLE,
    FETCH,
    MESSAGE,
    ELEMENT,
    KEY,
    ASK,
    DATA,
    ANSWER,
    GIVE
  } state_t;

  state_t                state;
  port_transfer_t        t;
  port_verdict_t         verdict;
  logic           [31:0] pdn;
  logic           [63:0] ring;
  logic           [ 4:0] log2;
  logic           [63:0] address;
  logic                  failed;
  logic           [ 4:0] at;
  // Bytes before the next piece of the message, or of its element; bytes that are still to come.
  logic           [31:0] skip;
  logic           [12:0] left;
  logic           [12:0] piece;
  logic           [12:0] beats_left;

  // ---- What is looked at

  logic           [35:0] end_of_bytes;
  logic           [31:0] ring_bytes;
  logic           [31:0] inline_start;
  logic           [31:0] inline_to_end;
  logic           [31:0] sge_left;

  assign end_of_bytes  = 36'(t.offset) + 36'(t.length);
  assign ring_bytes    = 32'd64 << log2;
  assign inline_start  = ((message.index << 6) + WQE_SEND_PAYLOAD_OFFSET + skip) & (ring_bytes - 32'd1);
  assign inline_to_end = ring_bytes - inline_start;
  assign sge_left      = sge.length - skip;

  // ---- Bytes

  logic             drops;
  logic       [6:0] recv_bytes;
  logic             pack_ready;
  logic             pack_valid;
  logic             pack_out_ready;
  port_beat_t       pack_out;
  logic             beats_valid;

  assign drops        = state == FETCH;
  assign recv_bytes   = beats_left >= 13'd64 ? 7'd64 : beats_left[6:0];
  assign recv_ready   = state == DATA && pack_ready;
  assign read_valid   = state == ASK;
  assign read_address = address[47:0];
  assign read_length  = 28'(piece);

  // What is fetched is kept until all of it is there: a fault may still refuse it.
  balboa_pack pack (
      .clk,
      .rst_n(rst_n && !drops),
      .in_valid(state == DATA && recv_valid),
      .in_ready(pack_ready),
      .in_data(recv.data),
      .in_bytes(recv_bytes),
      .in_last(recv.last && left == '0),
      .out_valid(pack_valid),
      .out_ready(pack_out_ready),
      .out(pack_out)
  );
  balboa_fifo #(
      .Width($bits(port_beat_t)),
      .Depth(64)
  ) beats (
      .clk,
      .rst_n(rst_n && !drops),
      .in_valid(pack_valid),
      .in_ready(pack_out_ready),
      .in_data(pack_out),
      .out_valid(beats_valid),
      .out_ready(state == GIVE && beat_ready),
      .out_data(beat)
  );
  assign beat_valid    = state == GIVE && beats_valid;
  assign fetched_valid = state == ANSWER;
  assign fetched       = '{verdict: verdict, tag: t.tag};

  // ---- One thing after the other

  assign is_idle       = state == IDLE;
  assign finds         = state == FETCH;
  assign find          = t.qpn;
  assign number        = t.number;
  assign element       = at[3:0];
  assign key_asks      = state == KEY;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        FETCH: begin
          state <= ANSWER;
          if (has_found && t.payload == PORT_PAYLOAD_MESSAGE) state <= MESSAGE;
          if (has_found && t.payload == PORT_PAYLOAD_REMOTE && t.access == PORT_ACCESS_READ) state <= KEY;
        end
        MESSAGE:
        state <= is_current && !message.has_failed && message.opcode != CQE_OPCODE_READ &&
            end_of_bytes <= 36'(message.length) ? ELEMENT : ANSWER;
        ELEMENT: begin
          if (message.is_inline) state <= ASK;
          else if (at == message.elements) state <= ANSWER;
          else if (skip < sge.length) state <= KEY;
        end
        KEY: state <= key_open ? ASK : ANSWER;
        ASK: if (read_ready) state <= DATA;
        DATA: begin
          if (failed) state <= ANSWER;
          else if (recv_valid && recv_ready && recv.last) state <= left == '0 ? ANSWER : ELEMENT;
        end
        ANSWER: if (fetched_ready) state <= verdict == PORT_VERDICT_DONE ? GIVE : IDLE;
        GIVE: if (beat_valid && beat_ready && beat.last) state <= IDLE;
        default: state <= asks ? FETCH : IDLE;
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (asks) t <= ask;
    if (read_valid) failed <= 1'b0;
    else if (fault_valid) failed <= 1'b1;
    case (state)
      FETCH: begin
        place          <= found_place;
        pdn            <= found.pdn;
        ring           <= found.ring;
        log2           <= found.log2;
        skip           <= t.offset;
        left           <= t.length;
        at             <= '0;
        verdict        <= PORT_VERDICT_UNREACHABLE;
        // Of memory that a peer READs it is one piece.
        piece          <= t.length;
        key_ask.key    <= t.rkey;
        key_ask.pdn    <= found.pdn;
        key_ask.va     <= t.address;
        key_ask.length <= 32'(t.length);
        key_ask.right  <= KEY_ACCESS_REMOTE_READ;
      end
      ELEMENT: begin
        if (message.is_inline) begin
          // It stands in the ring, which its owner keeps until the completion.
          piece   <= inline_to_end < 32'(left) ? inline_to_end[12:0] : left;
          address <= ring + 64'd64 + 64'(inline_start);
        end else if (skip >= sge.length) begin
          skip <= skip - sge.length;
          at   <= at + 5'd1;
        end else begin
          piece          <= sge_left < 32'(left) ? sge_left[12:0] : left;
          key_ask.key    <= sge.lkey;
          key_ask.pdn    <= pdn;
          key_ask.va     <= sge.address + 64'(skip);
          key_ask.length <= sge_left < 32'(left) ? sge_left : 32'(left);
          key_ask.right  <= '0;
        end
      end
      KEY:     address <= key_iova;
      ASK:
      if (read_ready) begin
        beats_left <= piece;
        left       <= left - piece;
        skip       <= skip + 32'(piece);
      end
      DATA:
      if (!failed && recv_valid && recv_ready) begin
        beats_left <= beats_left - 13'(recv_bytes);
        if (recv.last && left == '0) verdict <= PORT_VERDICT_DONE;
      end
      default: ;
    endcase
  end
endmodule
