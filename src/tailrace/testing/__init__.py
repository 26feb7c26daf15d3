"""Embedded servers and test doubles for tests, demos and benchmarks; public, also for users."""

from tailrace.testing.kafka import EmbeddedKafka
from tailrace.testing.nats import EmbeddedNats, EmbeddedNatsCluster
from tailrace.testing.postgres import EmbeddedPostgres
from tailrace.testing.proxy import TcpProxy
from tailrace.testing.rabbitmq import EmbeddedRabbitMQ
from tailrace.testing.receiver import HttpReceiver, HttpRequest, HttpResponse
from tailrace.testing.redis import EmbeddedRedis, EmbeddedRedisCluster
from tailrace.testing.search import EmbeddedElasticsearch, EmbeddedOpenSearch
from tailrace.testing.shop import SampleShop
from tailrace.testing.store import MemoryStore, PowerCutError

__all__ = [
    "EmbeddedElasticsearch",
    "EmbeddedKafka",
    "EmbeddedNats",
    "EmbeddedNatsCluster",
    "EmbeddedOpenSearch",
    "EmbeddedPostgres",
    "EmbeddedRabbitMQ",
    "EmbeddedRedis",
    "EmbeddedRedisCluster",
    "HttpReceiver",
    "HttpRequest",
    "HttpResponse",
    "MemoryStore",
    "PowerCutError",
    "SampleShop",
    "TcpProxy",
]
