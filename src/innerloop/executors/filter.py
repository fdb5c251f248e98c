"""The Kalman filter of a random walk by tiles: the innovation matrix of all tokens of a tile, one Cholesky.

Within a tile from (S_0, P_0), with tau_i the number of tokens through i (`scale` summed), Q = diag(process_noise),

    cov(k_t^T w_t, k_i^T w_i) = k_t^T (P_0 + min(tau_t, tau_i) Q) k_i

so with X = sqrt(l) K, e = sqrt(l) (V - K S_0) and r the observation noise,

    Sigma = r I + X P_0 X^T + min(tau, tau^T) * (X Q X^T) = L L^T,      z = L^-1 e
    o_t = q_t^T S_0 + sum_{i<=t} (F L^-T)_{t,i} z_i,   F_{t,i} = q_t^T (P_0 + tau_i Q) x_i       (read-write: i < t)
    k_t^T P_t k_t = k_t^T (P_0 + tau_t Q) k_t - sum_{i<t} (F' L^-T)_{t,i}^2,   F' likewise of keys: the variance
    S_c = S_0 + G^T z,   P_c = P_0 + tau_c Q - G^T G,   G = L^-1 (X P_0 + tau X Q)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .exact import Folded

CHUNK = 64


def run(call: Folded) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Outputs [R, T, V], the mean and covariance after the call, the variances [R, T] if asked for."""
    R, _, K = call.q.shape
    cut = call.tiles(CHUNK)
    real = cut.real
    q, k, v = cut.gather(call.q), cut.gather(call.k), cut.gather(call.v)
    lr = torch.ones_like(k[..., 0]) if call.lr is None else cut.gather(call.lr)
    lr = lr if real is None else lr * real
    time = torch.ones_like(lr) if call.scale is None else cut.gather(call.scale)
    tau = (time if real is None else time * real).cumsum(-1)
    noise = call.parameters["process_noise"].expand(R, K)
    r = call.parameters["observation_noise"][:, :, None]

    root = (lr + (lr == 0) * 1e-30).sqrt()[..., None]  # see innovations.py
    X, target = root * k, root * v
    walk = X * noise[:, None, None]
    # tau of the earlier one, by its place: `minimum` would share out the derivative where two are equal
    later = torch.ones(tau.shape[-1], tau.shape[-1], dtype=torch.bool, device=tau.device).tril()
    observed = torch.where(later, tau[..., None, :], tau[..., :, None]) * (walk @ X.mT)
    observed = observed + r[:, None] * torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
    asked = (q @ walk.mT) * tau[..., None, :]
    moved = tau[..., None] * walk
    own = None if not call.asks else (k * noise[:, None, None] * k).sum(-1) * tau  # k^T (tau Q) k

    S, P = call.state["S"], call.state["covariance"]
    outputs: list[Tensor] = []
    variances: list[Tensor] = []
    for n in range(k.shape[1]):
        if cut.restart is not None:
            again = cut.restart[:, n, None, None]
            S, P = torch.where(again, call.initial["S"], S), torch.where(again, call.initial["covariance"], P)
        x = X[:, n]
        xP = x @ P
        L, _ = torch.linalg.cholesky_ex(observed[:, n] + xP @ x.mT)
        right = torch.cat([xP + moved[:, n], target[:, n] - x @ S], -1)
        G, z = torch.linalg.solve_triangular(L, right, upper=False).split([K, v.shape[-1]], -1)
        F = asked[:, n] + q[:, n] @ xP.mT
        gain = torch.linalg.solve_triangular(L, F.mT, upper=False).mT
        outputs.append(q[:, n] @ S + gain.tril(-1 if call.read_first else 0) @ z)
        if own is not None:
            seen = gain if call.q is call.k else torch.linalg.solve_triangular(
                L, (k[:, n] @ walk[:, n].mT * tau[:, n, None, :] + k[:, n] @ xP.mT).mT, upper=False
            ).mT  # fmt: skip
            prior = ((k[:, n] @ P) * k[:, n]).sum(-1) + own[:, n]
            variances.append((prior - seen.tril(-1).square().sum(-1)).clamp(min=0))
        S = S + G.mT @ z
        P = P + tau[:, n, -1, None, None] * torch.diag_embed(noise) - G.mT @ G
    output = cut.scatter(torch.stack(outputs, 1)) if outputs else call.v
    variance = cut.scatter(torch.stack(variances, 1)[..., None])[..., 0] if variances else None
    return output, {"S": S, "covariance": P}, variance
