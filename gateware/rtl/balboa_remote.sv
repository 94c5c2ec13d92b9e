// What comes from peers: the check of a whole message, and bytes for the memory that it names, or that a receive or a READ
// of one's own does.
module balboa_remote
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_host_pkg::*;
  import balboa_port_pkg::*;
(
    input  logic                  clk,
    input  logic                  rst_n,
    // A question; one of them at a time.
    input  logic                  checks,
    input  port_check_t           check,
    input  logic                  places,
    input  port_transfer_t        place,
    output logic                  is_idle,
    // Its queue pair.
    output logic                  finds,
    output logic           [23:0] find,
    input  logic                  has_found,
    input  qp_place_t             found_place,
    input  qp_t                   found,
    // The message, or the receive, that it is of.
    output qp_place_t             message_place,
    output port_number_t          number,
    output logic           [ 3:0] element,
    input  logic                  is_current,
    input  message_t              message,
    input  wqe_sge_t              message_sge,
    input  logic                  is_claimed,
    input  receive_t              receive,
    input  wqe_sge_t              receive_sge,
    // Keys.
    output logic                  key_asks,
    output key_ask_t              key_ask,
    input  logic                  key_open,
    input  logic           [63:0] key_iova,
    // Host memory.
    output logic                  write_valid,
    input  logic                  write_ready,
    output logic           [47:0] write_address,
    output logic           [27:0] write_length,
    output logic                  send_valid,
    input  logic                  send_ready,
    output host_beat_t            send,
    input  logic                  written,
    input  logic                  fault_valid,
    // The transport.
    output logic                  checked_valid,
    input  logic                  checked_ready,
    output port_checked_t         checked,
    input  logic                  beat_valid,
    output logic                  beat_ready,
    input  port_beat_t            beat,
    output logic                  placed_valid,
    input  logic                  placed_ready,
    output port_placed_t          placed
);
  typedef enum logic [3:0] {
    IDLE,
    CHECK,
    CHECK_KEY,
    CHECKED,
    PLACE,
    MESSAGE,
    ELEMENT,
    KEY,
    ASK,
    DATA,
    END,
    DRAIN,
    PLACED
  } state_t;

  state_t                state;
  port_check_t           k;
  port_transfer_t        t;
  port_verdict_t         verdict;
  logic           [31:0] access;
  logic           [31:0] pdn;
  logic           [63:0] address;
  logic                  failed;
  logic           [ 4:0] at;
  // Bytes before the next piece of its element; bytes that are still to be placed.
  logic           [31:0] skip;
  logic           [12:0] left;
  logic           [12:0] piece;
  logic           [31:0] sge_left;
  logic           [35:0] end_of_bytes;

  logic                  is_receive;
  wqe_sge_t              sge;
  logic           [ 4:0] elements;
  logic                  takes_bytes;

  assign is_receive   = t.payload == PORT_PAYLOAD_RECEIVE;
  assign sge          = is_receive ? receive_sge : message_sge;
  assign elements     = is_receive ? receive.elements : message.elements;
  assign sge_left     = sge.length - skip;
  assign end_of_bytes = 36'(t.offset) + 36'(t.length);
  always_comb begin
    takes_bytes = is_current && !message.has_failed && message.opcode == CQE_OPCODE_READ &&
        end_of_bytes <= 36'(message.length);
    if (is_receive) takes_bytes = is_claimed && !receive.has_failed && end_of_bytes <= 36'(receive.capacity);
  end

  // ---- Bytes

  logic       out_valid;
  logic       out_ready;
  port_beat_t out;
  logic       feeds;
  logic       has_last;
  logic       unpack_ready;
  logic       piece_valid;
  port_beat_t piece_beat;

  balboa_fifo #(
      .Width($bits(port_beat_t)),
      .Depth(4)
  ) beats (
      .clk,
      .rst_n,
      .in_valid(beat_valid),
      .in_ready(beat_ready),
      .in_data (beat),
      .out_valid,
      .out_ready,
      .out_data(out)
  );
  balboa_unpack unpack (
      .clk,
      .rst_n(rst_n && state != PLACE && state != DRAIN),
      .in_valid(feeds && out_valid),
      .in_ready(unpack_ready),
      .in(out),
      .begins(state == ASK && write_ready),
      .length(piece),
      .out_valid(piece_valid),
      .out_ready(state == DATA && send_ready),
      .out(piece_beat)
  );
  // Beats of the next question wait behind the last one of this.
  assign feeds = !has_last && (state == MESSAGE || state == ELEMENT || state == KEY || state == ASK || state == DATA ||
      state == END);
  assign out_ready = (feeds && unpack_ready) || (state == DRAIN && !has_last);
  assign write_valid = state == ASK;
  assign write_address = address[47:0];
  assign write_length = 28'(piece);
  assign send_valid = state == DATA && piece_valid;
  assign send = '{last: piece_beat.last, keep: keep_of(28'(piece_beat.bytes)), data: piece_beat.data};

  // ---- Answers

  assign checked_valid = state == CHECKED;
  assign checked = '{verdict: verdict, tag: k.tag};
  assign placed_valid = state == PLACED;
  assign placed = '{verdict: verdict, tag: t.tag};

  // ---- One thing after the other

  assign is_idle = state == IDLE;
  assign finds = state == CHECK || state == PLACE;
  assign find = state == CHECK ? k.qpn : t.qpn;
  assign number = t.number;
  assign element = at[3:0];
  assign key_asks = state == CHECK_KEY || state == KEY;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      state <= IDLE;
    end else begin
      case (state)
        CHECK: state <= has_found ? CHECK_KEY : CHECKED;
        CHECK_KEY: state <= CHECKED;
        CHECKED: if (checked_ready) state <= IDLE;
        PLACE: begin
          state <= DRAIN;
          if (has_found && (t.payload == PORT_PAYLOAD_MESSAGE || is_receive)) state <= MESSAGE;
          if (has_found && t.payload == PORT_PAYLOAD_REMOTE && t.access == PORT_ACCESS_WRITE) state <= KEY;
        end
        MESSAGE: state <= takes_bytes ? ELEMENT : DRAIN;
        ELEMENT: begin
          if (at == elements) state <= DRAIN;
          else if (skip < sge.length) state <= KEY;
        end
        KEY: state <= key_open ? ASK : DRAIN;
        ASK: if (write_ready) state <= DATA;
        DATA: if (piece_valid && send_ready && piece_beat.last) state <= END;
        END: begin
          if (written || failed) state <= left == '0 ? PLACED : failed ? DRAIN : ELEMENT;
        end
        DRAIN: if (has_last || (out_valid && out.last)) state <= PLACED;
        PLACED: if (placed_ready) state <= IDLE;
        default: begin
          if (checks) state <= CHECK;
          else if (places) state <= PLACE;
          else state <= IDLE;
        end
      endcase
    end
  end

  always_ff @(posedge clk) begin
    if (checks) k <= check;
    if (places) t <= place;
    if (write_valid) failed <= 1'b0;
    else if (fault_valid) failed <= 1'b1;
    if (places) has_last <= 1'b0;
    else if (out_valid && out_ready && out.last) has_last <= 1'b1;
    case (state)
      CHECK: begin
        access         <= found.access;
        key_ask.key    <= k.rkey;
        key_ask.pdn    <= found.pdn;
        key_ask.va     <= k.address;
        key_ask.length <= k.length;
        key_ask.right  <= k.access == PORT_ACCESS_READ ? KEY_ACCESS_REMOTE_READ : KEY_ACCESS_REMOTE_WRITE;
        verdict        <= PORT_VERDICT_UNREACHABLE;
      end
      CHECK_KEY: begin
        if ((access & key_ask.right) == '0) verdict <= PORT_VERDICT_INVALID_REQUEST;
        else verdict <= key_ask.length == '0 || key_open ? PORT_VERDICT_DONE : PORT_VERDICT_DENIED;
      end
      PLACE: begin
        message_place  <= found_place;
        pdn            <= found.pdn;
        skip           <= t.offset;
        left           <= t.length;
        at             <= '0;
        verdict        <= PORT_VERDICT_UNREACHABLE;
        // Memory that a peer WRITEs is one piece.
        piece          <= t.length;
        key_ask.key    <= t.rkey;
        key_ask.pdn    <= found.pdn;
        key_ask.va     <= t.address;
        key_ask.length <= 32'(t.length);
        key_ask.right  <= KEY_ACCESS_REMOTE_WRITE;
      end
      MESSAGE: if (is_receive) pdn <= receive.pdn;
      ELEMENT: begin
        if (skip >= sge.length) begin
          skip <= skip - sge.length;
          at   <= at + 5'd1;
        end else begin
          piece          <= sge_left < 32'(left) ? sge_left[12:0] : left;
          key_ask.key    <= sge.lkey;
          key_ask.pdn    <= pdn;
          key_ask.va     <= sge.address + 64'(skip);
          key_ask.length <= sge_left < 32'(left) ? sge_left : 32'(left);
          key_ask.right  <= KEY_ACCESS_LOCAL_WRITE;
        end
      end
      KEY:     address <= key_iova;
      ASK:
      if (write_ready) begin
        left <= left - piece;
        skip <= skip + 32'(piece);
      end
      END:     if (!failed && written && left == '0) verdict <= PORT_VERDICT_DONE;
      default: ;
    endcase
  end
endmodule
