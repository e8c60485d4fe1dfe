"""New weights for a running vLLM server: stopped between two steps, confirmed, labelled, and let go on."""

from __future__ import annotations

from freerun.backends.vllm.client import VllmClient
from freerun.backends.vllm.weights import ReadableWeights
from freerun.errors import WeightsError


def swap_weights(client: VllmClient, weights: ReadableWeights, *, keeps_cache: bool) -> None:
    """Stop the server, have it read the weights, make sure that it did, and let it go on."""
    label = str(weights.version)
    client.pause(keeps_cache=keeps_cache)
    for read in client.read_weights(
        path=weights.path,
        version=weights.version,
        checksum=weights.checksum,
        num_bytes=weights.num_bytes,
        tensors=weights.tensors,
    ):
        if read.missing:
            raise WeightsError(
                f"the vLLM server at {client.address} has a model with {read.missing}, which the weights of this "
                "run do not have; start it with the run's model"
            )
        if (read.version, read.checksum) != (weights.version, weights.checksum):
            raise WeightsError(
                f"weights of version {label} arrived damaged in the vLLM server: checksum {read.checksum}, "
                f"published was {weights.checksum}"
            )
    client.set_version(label)
    if (held := client.version()) != label:
        raise WeightsError(f'the vLLM server says that it holds version "{held}" after loading {label}')
    client.resume()
