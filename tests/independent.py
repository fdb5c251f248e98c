"""Independent oracles of the named rows: numpy, float64, one batch row and one head at a time.

Nothing here knows the library. Each function starts from the published equation and, where it can, takes another road
than the recursive update: sums over all pairs, unrolled products of dense transitions, least squares on stacked
problems, a matrix exponential, one joint Gaussian.

    row(q [T, K], k [T, K], v [T, V], gates, order, S0, ...)  ->  outputs [T, V], final memory

Gates: "lr" [T], "log_decay" [T] or [T, K], "momentum" [T]; absent ones are 1, 0 (or the row's schedule) and 0.9. A gate
that a row does not read raises. The read of token t sees the first t+1 tokens ("write-read", counting from 0) or the
first t ("read-write": neither the decay nor the write of token t has happened yet).
"""

# fmt: off
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import expm

Array = NDArray[np.float64]
Gates = Mapping[str, ArrayLike] | None
Start = ArrayLike | None
Answer = tuple[Array, dict[str, Array]]
WR, RW = "write-read", "read-write"
SEEN = {WR: 1, RW: 0}  # does the read of token t see token t?


def _gates(gates: Gates, read: str, T: int) -> dict[str, Array]:
    given = {name: np.asarray(value, float) for name, value in (gates or {}).items() if value is not None}
    if unread := set(given) - set(read.split()):
        raise ValueError(f"this row reads the gates {read!r} only, not {sorted(unread)}")
    return {"lr": np.ones(T), "scale": np.ones(T), "log_decay": np.zeros(T), "momentum": np.full(T, 0.9)} | given


def _span(log_decay: Array, first: int, stop: int) -> Array:
    """Fraction kept over the tokens first..stop-1: exp of the sum over that interval."""
    return np.exp(log_decay[first:stop].sum(0))


def _start(S0: Start, k: Array, v: Array) -> Array:
    return np.zeros((k.shape[1], v.shape[1])) if S0 is None else np.array(S0, float)


def _spread(x: ArrayLike, K: int) -> Array:
    """A scalar, a diagonal [K] or a matrix [K, K], as a matrix."""
    a = np.asarray(x, float)
    return a if a.ndim == 2 else np.diag(np.broadcast_to(a, (K,)))


def _reads(q: Array, memories: Sequence[Array], order: str) -> Array:
    """o_t = S^T q_t, where memories[n] is S after n tokens."""
    outputs = np.zeros((len(q), memories[0].shape[1]))
    for t in range(len(q)):
        outputs[t] = q[t] @ memories[t + SEEN[order]]
    return outputs


def _solve(rows: Array, targets: Array) -> Array:
    """argmin_S 1/2 |rows S - targets|^2, of minimum norm."""
    return np.asarray(np.linalg.lstsq(rows, targets, rcond=None)[0], float)


def _pair_sum(q: Array, k: Array, v: Array, gate: dict[str, Array], order: str, S0: Start) -> Answer:
    """S_n = kept_(0 -> n) * S_0 + sum_{i<n} lr_i (kept_(i -> n) * k_i) v_i^T, every n from scratch."""
    lr, ld, memories = gate["lr"], gate["log_decay"], []
    for n in range(len(q) + 1):
        S = _spread(_span(ld, 0, n), k.shape[1]) @ _start(S0, k, v)
        memories.append(S + sum(lr[i] * np.outer(_span(ld, i + 1, n) * k[i], v[i]) for i in range(n)))
    return _reads(q, memories, order), {"S": memories[-1]}


def linear_attention(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = S_{t-1} + lr k v^T."""
    return _pair_sum(q, k, v, _gates(gates, "lr", len(q)), order, S0)


def retnet(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None, head: int = 0
) -> Answer:
    """S_t = gamma_h S_{t-1} + lr k v^T, gamma_h = 1 - 2^-(5+h) unless the gate says otherwise."""
    schedule = {"log_decay": np.full(len(q), log(1 - 2.0 ** -(5 + head)))}
    gates = schedule | {name: gate for name, gate in (gates or {}).items() if gate is not None}
    return _pair_sum(q, k, v, _gates(gates, "lr log_decay", len(q)), order, S0)


def mamba2(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = a_t S_{t-1} + lr_t k v^T, a_t a scalar (lr is Mamba's Delta, a its exp(-A Delta))."""
    return _pair_sum(q, k, v, _gates(gates, "lr log_decay", len(q)), order, S0)


def gla(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = diag(a_t) S_{t-1} + lr k v^T, a_t per key channel."""
    return _pair_sum(q, k, v, _gates(gates, "lr log_decay", len(q)), order, S0)


def _unroll(transitions: list[Array], writes: list[Array], Z0: Array) -> list[Array]:
    """Z_n = sum_{i<n} F_{n-1} ... F_{i+1} B_i + F_{n-1} ... F_0 Z_0, every n from scratch."""
    memories = []
    for n in range(len(transitions) + 1):
        Z, product = np.zeros_like(Z0), np.eye(len(Z0))
        for i in reversed(range(n)):
            Z += product @ writes[i]
            product = product @ transitions[i]
        memories.append(Z + product @ Z0)
    return memories


def _delta(q: Array, k: Array, v: Array, gate: dict[str, Array], order: str, S0: Start) -> Answer:
    """S_t = (I - lr k k^T) diag(a) S_{t-1} + lr k v^T: the decay first, the step from the decayed memory."""
    T, K = k.shape
    lr, kept = gate["lr"], np.exp(gate["log_decay"])
    F = [(np.eye(K) - lr[t] * np.outer(k[t], k[t])) @ _spread(kept[t], K) for t in range(T)]
    B = [lr[t] * np.outer(k[t], v[t]) for t in range(T)]
    memories = _unroll(F, B, _start(S0, k, v))
    return _reads(q, memories, order), {"S": memories[-1]}


def deltanet(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = (I - lr k k^T) S_{t-1} + lr k v^T."""
    return _delta(q, k, v, _gates(gates, "lr", len(q)), order, S0)


def gated_deltanet(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = a (I - lr k k^T) S_{t-1} + lr k v^T, a a scalar."""
    return _delta(q, k, v, _gates(gates, "lr log_decay", len(q)), order, S0)


def kda(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = (I - lr k k^T) diag(a) S_{t-1} + lr k v^T, a per key channel."""
    return _delta(q, k, v, _gates(gates, "lr log_decay", len(q)), order, S0)


def titans_linear(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None, segment: int = 1
) -> Answer:
    """U_t = m U_{t-1} - lr k (X^T k - v)^T,  S_t = a S_{t-1} + U_t, X where the segment began: linear in [S; U; X]."""
    (T, K), gate, F, B = k.shape, _gates(gates, "lr log_decay momentum", len(q)), [], []
    for t in range(T):
        lr, m, I, O = gate["lr"][t], gate["momentum"][t], np.eye(K), np.zeros((K, K))
        erase, write = lr * np.outer(k[t], k[t]), lr * np.outer(k[t], v[t])
        a, last = _spread(np.exp(gate["log_decay"][t]), K), (t + 1) % segment == 0
        F.append(np.block([[a, m * I, -erase], [O, m * I, -erase], [a, m * I, -erase] if last else [O, O, I]]))
        B.append(np.vstack([write, write, write * last]))
    stacks = _unroll(F, B, np.vstack([_start(S0, k, v), _start(None, k, v), _start(S0, k, v)]))
    return _reads(q, [Z[:K] for Z in stacks], order), {"S": stacks[-1][:K], "momentum": stacks[-1][K : 2 * K]}


def longhorn(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """S_t = argmin_S 1/2 |S - a S_{t-1}|^2 + lr/2 |S^T k - v|^2, as stacked least squares."""
    (T, K), gate, memories = k.shape, _gates(gates, "lr log_decay", len(k)), [_start(S0, k, v)]
    for t in range(T):
        kept, weight = _spread(np.exp(gate["log_decay"][t]), K) @ memories[-1], np.sqrt(gate["lr"][t])
        memories.append(_solve(np.vstack([np.eye(K), weight * k[t]]), np.vstack([kept, weight * v[t]])))
    return _reads(q, memories, order), {"S": memories[-1]}


def efla(q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None) -> Answer:
    """Flow dS/ds = -k (S^T k - v)^T from a S_{t-1} for the time lr: exp of the generator of the stack [S; v^T]."""
    T, K = k.shape
    gate, memories = _gates(gates, "lr log_decay", T), [_start(S0, k, v)]
    for t in range(T):
        kept = _spread(np.exp(gate["log_decay"][t]), K) @ memories[-1]
        generator = np.zeros((K + 1, K + 1))
        generator[:K, :K], generator[:K, K] = -np.outer(k[t], k[t]), k[t]
        memories.append((expm(gate["lr"][t] * generator) @ np.vstack([kept, v[t]]))[:K])
    return _reads(q, memories, order), {"S": memories[-1]}


def rls(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None,
    penalty: ArrayLike = 1.0, rule: str = "exponential",
) -> Answer:
    """Weighted ridge; lr is the weight of a pair and f = exp(log_decay) what is kept of the earlier evidence.

    exponential  argmin_S 1/2 sum_i w_i |S^T k_i - v_i|^2 + w_prior penalty/2 |S - S0|^2, w of everything decays
    static       the same with a penalty that never decays; it is not in the returned gram (S0 must be 0)
    regularized  A <- f A + (1-f) penalty I + lr k k^T,               S <- S + A^-1 lr k (v - S^T k)^T
    directional  A <- A - (1-f) A k k^T A / (k^T A k) + lr k k^T,     S likewise   (Cao and Schwartz 2000)

    S0 is the prior mean, penalty a scalar or a diagonal [K]. log_decay = -inf brings the prior (penalty and S0) back
    before its token is written, under every rule.
    """
    (T, K), gate = k.shape, _gates(gates, "lr log_decay", len(k))
    lr, ld, mean, prior = gate["lr"], gate["log_decay"], _start(S0, k, v), _spread(penalty, K)
    restarts = [t for t in range(T) if np.isneginf(ld[t])]
    if rule not in ("exponential", "static", "regularized", "directional") or (rule == "static" and mean.any()):
        raise ValueError(f"rule={rule!r}: unknown, or static (its penalty pulls to 0) with an S0")

    def pairs(n: int) -> tuple[Array, Array, Array, Array]:
        """What n tokens leave: weight [1] of the prior, weights [m, 1], keys [m, K] and values [m, V] of the pairs."""
        since = max([t for t in restarts if t < n], default=-1)
        used = list(range(max(since, 0), n))
        w = np.array([lr[i] * _span(ld, i + 1, n) for i in used]).reshape(-1, 1)
        return _span(ld, since + 1, n), w, k[used], v[used]

    if rule in ("exponential", "static"):
        memories = []
        for n in range(T + 1):
            kept, w, X, Y = pairs(n)
            root = np.sqrt(prior if rule == "static" else kept * prior)
            memories.append(_solve(np.vstack([root, np.sqrt(w) * X]), np.vstack([root @ mean, np.sqrt(w) * Y])))
        kept, w, X, Y = pairs(T)
        inside = 0 * prior if rule == "static" else kept * prior
        return _reads(q, memories, order), {"gram": inside + X.T @ (w * X), "moment": inside @ mean + X.T @ (w * Y)}

    root, memories = np.sqrt(prior), [mean]
    for t in range(T):
        S, along = memories[-1], root @ k[t]
        if t in restarts:
            root, S = np.sqrt(prior), mean
        elif rule == "regularized":  # A - penalty I decays like plain data: summed from scratch, not recursed
            _, w, X, _ = pairs(t)
            size, basis = np.linalg.eigh(prior + np.exp(ld[t]) * X.T @ (w * X))
            root = np.sqrt(np.clip(size, 0, None))[:, None] * basis.T
        elif along.any():  # shrink the one direction that k excites in the square root
            root = root - (1 - np.exp(ld[t] / 2)) * np.outer(along, along @ root) / (along @ along)
        # S + A^-1 lr k (v - S^T k)^T is the fit that stays near S in the metric of the evidence before the pair
        pair = np.sqrt(lr[t]) * k[t]
        memories.append(_solve(np.vstack([root, pair]), np.vstack([root @ S, np.sqrt(lr[t]) * v[t]])))
        root = np.vstack([root, pair])
    A = root.T @ root
    return _reads(q, memories, order), {"gram": A, "moment": A @ memories[-1]}


def mesa(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None, penalty: ArrayLike = 1.0
) -> Answer:
    """MesaNet: H = f H + lr k k^T, G = f G + lr k v^T, o = G^T (H + penalty I)^-1 q."""
    return rls(q, k, v, gates, order, S0, penalty, "static")


def kalman(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, S0: Start = None,
    process_noise: ArrayLike = 1e-3, observation_noise: float = 1.0, prior_variance: ArrayLike = 1.0,
) -> Answer:
    """Random walk x_t = x_{t-1} + N(0, Q), v_t = x_t^T k_t + N(0, noise / lr), x_0 ~ N(S0, P0): one joint Gaussian.

    With s_i the time (`scale`) through token i: cov(x_n, v_i) = (P0 + s_i Q) k_i and
    cov(v_i, v_j) = k_i^T (P0 + min(s_i, s_j) Q) k_j + noise.
    A pair with lr = 0 is not observed, but the walk goes on.
    """
    T, K = k.shape
    read, mean = _gates(gates, "lr scale", T), _start(S0, k, v)
    lr, time = read["lr"], np.cumsum(read["scale"])
    Q, P0, memories, covariance = _spread(process_noise, K), _spread(prior_variance, K), [], np.empty(0)
    for n in range(T + 1):
        seen = [i for i in range(n) if lr[i] > 0]
        X, Y = k[seen], v[seen]
        walked = np.minimum.outer(time[seen], time[seen])
        joint = X @ P0 @ X.T + walked * (X @ Q @ X.T) + np.diag(observation_noise / lr[seen])
        cross = np.array([(P0 + time[i] * Q) @ k[i] for i in seen]).reshape(len(seen), K).T
        gain = _solve(joint, cross.T).T if seen else cross
        memories.append(mean + gain @ (Y - X @ mean))
        covariance = P0 + (time[n - 1] if n else 0) * Q - gain @ cross.T
    return _reads(q, memories, order), {"S": memories[-1], "covariance": covariance}


def _exemplars(
    q: Array, k: Array, v: Array, order: str, capacity: int | None, read: Callable[[Array, Array, Array], Array]
) -> Answer:
    size = max(len(k), 1) if capacity is None else capacity
    outputs = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        if n := t + SEEN[order]:
            outputs[t] = read(q[t], k[:n][-size:], v[:n][-size:])
    return outputs, {"keys": k[-size:].copy(), "values": v[-size:].copy()}


def _average(logits: Array, values: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return weights @ values / weights.sum()


def nadaraya_watson(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR,
    bandwidth: float = 1.0, capacity: int | None = None,
) -> Answer:
    """Weighted mean of the values, weights exp(-|q - k|^2 / (2 bandwidth^2))."""
    _gates(gates, "", len(q))
    scale = -1 / (2 * bandwidth**2)
    return _exemplars(q, k, v, order, capacity, lambda x, X, Y: _average(scale * ((X - x) ** 2).sum(1), Y))


def softmax_attention(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR, capacity: int | None = None
) -> Answer:
    """Weighted mean of the values, weights exp(q . k), no scale."""
    _gates(gates, "", len(q))
    return _exemplars(q, k, v, order, capacity, lambda x, X, Y: _average(X @ x, Y))


def local_linear_attention(
    q: Array, k: Array, v: Array, gates: Gates = None, order: str = WR,
    penalty: ArrayLike = 1.0, capacity: int | None = None,
) -> Answer:
    """min over b, W of 1/2 sum_j w_j |v_j - b - W (k_j - q)|^2 + penalty/2 |W|^2, w_j = exp(q . k_j); output b.

    The penalty stands against the raw weights, not softmax weights; 0 needs pairs enough to determine b and W.
    """
    K = k.shape[1]

    def read(x: Array, keys: Array, values: Array) -> Array:
        top = (keys @ x).max()  # the whole objective times exp(-top): same argmin, no overflow
        w = np.exp((keys @ x - top) / 2)[:, None]
        data = np.hstack([w, w * (keys - x)])
        ridge = np.hstack([np.zeros((K, 1)), np.sqrt(_spread(penalty, K)) * exp(-top / 2)])
        return _solve(np.vstack([data, ridge]), np.vstack([w * values, np.zeros((K, values.shape[1]))]))[0]

    _gates(gates, "", len(q))
    return _exemplars(q, k, v, order, capacity, read)


ROWS: dict[str, Callable[..., Answer]] = {row.__name__: row for row in (
    linear_attention, retnet, mamba2, gla, deltanet, gated_deltanet, kda, longhorn, efla, titans_linear,
    rls, mesa, kalman, nadaraya_watson, softmax_attention, local_linear_attention,
)}


def check_by_hand(row: str, q: Any, k: Any, v: Any, wanted: Any, gates: Any = (), options: Any = (), final: Any = ()):
    """A flat list stands for [T, 1]."""
    q, k, v, wanted = (np.reshape(np.asarray(x, float), (len(x), -1)) for x in (q, k, v, wanted))
    outputs, memory = ROWS[row](q, k, v, dict(gates), **dict(options))
    np.testing.assert_allclose(outputs, wanted, rtol=1e-12, atol=1e-12, err_msg=row)
    for name, value in dict(final).items():
        np.testing.assert_allclose(memory[name].ravel(), np.ravel(value), rtol=1e-12, atol=1e-12, err_msg=row)


L2, H = log(2), -log(2)  # exp(H) = 1/2
# arguments of check_by_hand, worked out on paper: t = 1, 2, ...
HAND_CASES: list[tuple[Any, ...]] = [
    # o1 = 3*3; o2 = (2*1 + 1*2)*3 + (2*0 + 1*1)*(-1) = 12 - 1
    ("linear_attention", [[1, 1], [2, 1]], [[1, 2], [0, 1]], [3, -1], [9, 11], {}, {}, {"S": [3, 5]}),
    # gamma = 31/32: 1; 31/32 + 1 = 63/32; (31/32)(63/32) + 1 = 1953/1024 + 1 = 2977/1024. Head 1: 1; 63/64 + 1
    ("retnet", [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 63 / 32, 2977 / 1024]),
    ("retnet", [1, 1], [1, 1], [1, 1], [1, 127 / 64], {}, {"head": 1}),
    # S1 = (4,8)/2 + 2*1*(1,0) = (4,4); S2 = (4,4)/4 + 3*2*(0,1) = (1,7)
    ("mamba2", [1, 1], [1, 2], [[1, 0], [0, 1]], [[4, 4], [1, 7]],
     {"lr": [2, 3], "log_decay": [H, 2 * H]}, {"S0": [[4, 8]]}),
    # S1 = (4/2, 8/4) + 2*(1,1) = (4,4), o1 = 8; S2 = (4/2, 4) + 1*(2,1) = (4,5), o2 = 4 + 2*5; read first: 4 + 8
    ("gla", [[1, 1], [1, 2]], [[1, 1], [2, 1]], [2, 1], [8, 14],
     {"log_decay": [[H, 2 * H], [H, 0]]}, {"S0": [[4], [8]]}, {"S": [4, 5]}),
    ("gla", [[1, 1]], [[1, 1]], [2], [12], {"log_decay": [[H, 2 * H]]}, {"S0": [[4], [8]], "order": RW}),
    # S1 = 1/2*(1,1)*2 = (1,1), o1 = 1; prediction 1, error 2: S2 = (1,1) + 1/2*2*(1,0) = (2,1), o2 = 3
    ("deltanet", [[1, 0], [1, 1]], [[1, 1], [1, 0]], [2, 3], [1, 3], {"lr": [0.5, 0.5]}, {}, {"S": [2, 1]}),
    ("gated_deltanet", [1], [1], [1], [1], {"log_decay": [H]}, {"S0": [[2]]}),  # 2/2 = 1 predicts v: no error, S = 1
    # (2,4)/2 = (1,2), error (2,-2): S1 = (2,1); halved (1,1/2), error (4,4) - (2,1) = (2,3): S2 = (1,1/2) + (2,3)/2
    ("gated_deltanet", [1, 3], [1, 2], [[3, 0], [4, 4]], [[2, 1], [6, 6]],
     {"lr": [0.5, 0.25], "log_decay": [H, H]}, {"S0": [[2, 4]]}, {"S": [2, 2]}),
    # (2/2, 4/4) = (1,1), error 4 - 2 = 2: S1 = (2,2), o1 = 6; (2, 1), error 5 - 1 = 4: S2 = (2,5), o2 = 7
    ("kda", [[1, 2], [1, 1]], [[1, 1], [0, 1]], [4, 5], [6, 7],
     {"lr": [0.5, 1], "log_decay": [[H, 2 * H], [0, H]]}, {"S0": [[2], [4]]}),
    # step lr/(1 + lr |k|^2): 1/3 * 3 * (1,1) = (1,1), o1 = 1; (1/2)/(1 + 2) = 1/6, error 5 - 2 = 3: + 1/6*2*3 = (2,1)
    ("longhorn", [[1, 0], [1, 1]], [[1, 1], [2, 0]], [3, 5], [1, 3], {"lr": [1, 0.5]}),
    ("longhorn", [1], [1], [4], [3], {"log_decay": [H]}, {"S0": [[4]]}),  # 4/2 = 2, step 1/2, error 2: 3
    # step (1 - 2^-1)/1 = 1/2: S1 = 2; time ln2/4 along |k|^2 = 4: step (1 - 1/2)/4 = 1/8, error 4: S2 = 2 + 1/8*2*4
    ("efla", [1, 1], [1, 2], [4, 8], [2, 3], {"lr": [L2, L2 / 4]}),
    ("efla", [[1, 2]], [[1, 1]], [8], [9], {"lr": [L2]}),  # |k|^2 = 2: step (1 - 1/4)/2 = 3/8, S = 3/8*8*(1,1) = (3,3)
    # U1 = -(1-3)/2 = 1, S1 = 1/2 + 1; U2 = 1/2 + (3/2)/2 = 5/4, S2 = 3/4 + 5/4; U3 = 5/8 - (2-1)/2 = 1/8, S3 = 1 + 1/8
    ("titans_linear", [1, 1, 1], [1, 1, 1], [3, 3, 1], [1.5, 2, 1.125],
     {"lr": [0.5] * 3, "log_decay": [H] * 3, "momentum": [0.5] * 3}, {"S0": [[1]]}, {"momentum": 0.125}),
    ("titans_linear", [1, 1], [1, 1], [2, 2], [1, 2.4], {"lr": [0.5, 0.5]}),  # U1 = S1 = 1; U2 = 0.9 + 1/2*1, S2 = 2.4
    # pairs of errors at one memory: U1 = S1 = 1; U2 = 1/2 + 1, S2 = 5/2; U3 = 3/4 - 1/4, S3 = 3
    ("titans_linear", [1] * 3, [1] * 3, [2] * 3, [1, 2.5, 3], {"lr": [0.5] * 3, "momentum": [0.5] * 3}, {"segment": 2}),
    # (A, b) = (1/2 + 1, 3), 2; (3/4 + 1, 3/2 + 1), 10/7
    ("rls", [1, 1], [1, 1], [3, 1], [2, 10 / 7], {"log_decay": [H, H]}, {}, {"gram": 7 / 4, "moment": 5 / 2}),
    # A = diag(2,1), w = (1,0); A = [[3,1],[1,2]], b = (5,3): w = (2*5 - 3, 3*3 - 5)/5 = (7/5, 4/5), o2 = 11/5
    ("rls", [[1, 1], [1, 1]], [[1, 0], [1, 1]], [2, 3], [1, 11 / 5]),
    # 3/2; the prior is back: (1 + 1, 1), 1/2. Regularized: A = 2, w = 3/2; prior, w = 0 again: 0 + 1/2
    ("rls", [1, 1], [1, 1], [3, 1], [1.5, 0.5], {"log_decay": [0, -np.inf]}),
    ("rls", [1, 1], [1, 1], [3, 1], [1.5, 0.5], {"log_decay": [0, -np.inf]}, {"rule": "regularized"}),
    # A = 1/2 + 1/2 + 1 = 2, w = 3/2; A = 2/2 + 1/2 + 1 = 5/2, w = 3/2 + 2/5*(1 - 3/2) = 13/10, b = 13/4
    ("rls", [1, 1], [1, 1], [3, 1], [1.5, 1.3],
     {"log_decay": [H, H]}, {"rule": "regularized"}, {"gram": 5 / 2, "moment": 13 / 4}),
    # A = diag(3/2,1), w = (4/3,0); A = diag(3/2,3/2), w = (4/3,2); Ak = (3/2,3/2), kAk = 3: A - 3/8 + 1 =
    # [[17,5],[5,17]]/8, Ak = 11/4 k, error 4 - 10/3 = 2/3: w + 4/11*2/3 = (4/3 + 8/33, 2 + 8/33), o3 = 52/33
    ("rls", [[1, 0], [1, 1], [1, 0]], [[1, 0], [0, 1], [1, 1]], [2, 3, 4], [4 / 3, 10 / 3, 52 / 33],
     {"log_decay": [H] * 3}, {"rule": "directional"}, {"gram": [17 / 8, 5 / 8, 5 / 8, 17 / 8]}),
    # gram, moment = 1, 3: 3/(1 + 1); 3/2, 5/2: (5/2)/(3/2 + 1) = 1
    ("mesa", [1, 1], [1, 1], [3, 1], [1.5, 1], {"log_decay": [H, H]}, {}, {"gram": 3 / 2, "moment": 5 / 2}),
    # P = 2, gain 2/3: S = 2, P = 2/3; P = 5/3, noise 2, gain (5/3)/(11/3) = 5/11: S = 2 + 5/11*11, P = 5/3*6/11
    ("kalman", [1, 1], [1, 1], [3, 13], [2, 7], {"lr": [1, 0.5]}, {"process_noise": 1}, {"covariance": 10 / 11}),
    ("kalman", [1], [1], [4], [3], {"scale": [2]}, {"process_noise": 1}, {"covariance": 0.75}),  # P = 3, gain 3/4
    # P = 2 I, k^T P k + 1 = 5, gain (2,2)/5: S = (2,2); P = 2 I - (4/5) 1 1^T
    ("kalman", [[1, 0]], [[1, 1]], [5], [2], {}, {"process_noise": 1}, {"covariance": [1.2, -0.8, -0.8, 1.2]}),
    # weights 2^(-d^2): 3; (3/2 + 6)/(3/2) = 5. Last pair only: 3, 6. Read first: 0, 3
    ("nadaraya_watson", [0, 1], [0, 1], [3, 6], [3, 5], {}, {"bandwidth": (2 * L2) ** -0.5}),
    ("nadaraya_watson", [0, 1], [0, 1], [3, 6], [3, 6], {}, {"capacity": 1}, {"keys": 1, "values": 6}),
    ("nadaraya_watson", [0, 1], [0, 1], [3, 6], [0, 3], {}, {"order": RW}),
    ("softmax_attention", [1, 1], [0, L2], [3, 6], [3, 5]),  # weights 1, 2: (3 + 12)/3
    # q = 0, weights 1: means 2 and 4, sum dk^2 = 2, sum dk dv = 4: W = 4/(2 + 2), b = 4 - 1*2
    ("local_linear_attention", [0, 0], [1, 3], [2, 6], [2, 2], {}, {"penalty": 2}),
    # q = ln 2, weights 1, 2: means 2/3 and 2, sum w dk^2 = 2/3, sum w dk dv = 2: W = 2/1, b = 2 - 2(2/3 - ln 2)
    ("local_linear_attention", [0, L2], [0, 1], [0, 3], [0, 2 / 3 + 2 * L2], {}, {"penalty": 1 / 3}),
]

if __name__ == "__main__":
    for case in HAND_CASES:
        check_by_hand(*case)
    assert {case[0] for case in HAND_CASES} == set(ROWS)
